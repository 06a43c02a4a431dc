# textkit: the project's one Rust library (chat templates), built by cargo, linked into onebit.
#
# The result is cached outside the tree by what it was made from (sources, Cargo.lock, compiler), so
# that a second build directory, worktree or sanitizer preset does not build it again.
set(OB_TEXTKIT_DIR ${CMAKE_SOURCE_DIR}/rust/textkit)
set(OB_TEXTKIT_RUST_MIN 1.87)

find_program(OB_CARGO cargo HINTS $ENV{CARGO_HOME}/bin $ENV{HOME}/.cargo/bin)
find_program(OB_RUSTC rustc HINTS $ENV{CARGO_HOME}/bin $ENV{HOME}/.cargo/bin)
set(textkit_version "")
if(OB_CARGO AND OB_RUSTC)
  execute_process(COMMAND ${OB_RUSTC} --version --verbose OUTPUT_VARIABLE textkit_version)
  string(REGEX MATCH "release: ([0-9.]+)" _ "${textkit_version}")
  set(textkit_release "${CMAKE_MATCH_1}")
endif()
if(NOT textkit_version OR textkit_release VERSION_LESS OB_TEXTKIT_RUST_MIN)
  message(FATAL_ERROR
    "Building 1bit needs a Rust toolchain, ${OB_TEXTKIT_RUST_MIN} or newer (found: "
    "${OB_CARGO} ${textkit_release}). It is used for the chat-template library only.\n"
    "Install it with rustup: rustup toolchain install stable\n"
    "or with your distribution's packages cargo and rustc, then configure again.")
endif()

file(GLOB textkit_sources CONFIGURE_DEPENDS
  ${OB_TEXTKIT_DIR}/src/*.rs ${OB_TEXTKIT_DIR}/Cargo.toml ${OB_TEXTKIT_DIR}/Cargo.lock)
set(textkit_stamp "${textkit_version}")
foreach(f ${textkit_sources})
  file(SHA256 ${f} textkit_sum)
  string(APPEND textkit_stamp "${textkit_sum}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${f})
endforeach()
string(SHA256 textkit_hash "${textkit_stamp}")
string(SUBSTRING ${textkit_hash} 0 16 textkit_hash)

if(DEFINED ENV{XDG_CACHE_HOME})
  set(textkit_cache $ENV{XDG_CACHE_HOME})
else()
  set(textkit_cache $ENV{HOME}/.cache)
endif()
set(textkit_target ${textkit_cache}/1bit-build/textkit-${textkit_hash})
set(textkit_lib ${textkit_target}/release/libtextkit.a)

add_custom_command(
  OUTPUT ${textkit_lib}
  COMMAND ${CMAKE_COMMAND} -E env --unset=RUSTFLAGS CARGO_TERM_PROGRESS_WHEN=never
    ${OB_CARGO} build --quiet --release --locked
    --manifest-path ${OB_TEXTKIT_DIR}/Cargo.toml --target-dir ${textkit_target}
  DEPENDS ${textkit_sources}
  COMMENT "Building the Rust library textkit (first time: fetches its crates)"
  VERBATIM)
add_custom_target(textkit_build DEPENDS ${textkit_lib})

add_library(textkit STATIC IMPORTED GLOBAL)
set_target_properties(textkit PROPERTIES IMPORTED_LOCATION ${textkit_lib})
target_link_libraries(textkit INTERFACE Threads::Threads m ${CMAKE_DL_LIBS})
add_dependencies(textkit textkit_build)
target_include_directories(onebit PRIVATE ${OB_TEXTKIT_DIR}/include)
target_link_libraries(onebit PUBLIC textkit)
add_dependencies(onebit textkit_build)
