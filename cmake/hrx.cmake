# libhrx-soft: libhrx's C interface over an interpreter of gfx11 code, for tests. A library of its own beside the
# program, needs nothing but libc; chosen by --device hrx-soft only. Included before the library exists; changes OB_SOURCES.
file(GLOB OB_HRX_SOFT_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/dev/hrx/soft/*.c)
list(FILTER OB_SOURCES EXCLUDE REGEX "/dev/hrx/soft/")
add_library(hrx-soft SHARED ${OB_HRX_SOFT_SOURCES})
target_include_directories(hrx-soft PRIVATE ${CMAKE_SOURCE_DIR}/src)
target_link_libraries(hrx-soft PRIVATE m Threads::Threads)
set_target_properties(hrx-soft PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
