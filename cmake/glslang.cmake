# cmake -DDIR=… -DVERSION=… -DSTEP=fetch|build [-DCARGO=…] -P glslang.cmake
# The shader compiler from the C++ source inside the crate glslang-sys (no Rust is compiled): DIR/glslang.
# Several build trees may ask at once, so it works under a lock.
file(MAKE_DIRECTORY ${DIR})
file(LOCK ${DIR} DIRECTORY GUARD PROCESS)
file(GLOB source ${DIR}/vendor/glslang-sys*/native/glslang)

if(STEP STREQUAL "fetch")
  if(source)
    return()
  endif()
  if(NOT CARGO)
    message(FATAL_ERROR "no cargo to fetch the crate glslang-sys with")
  endif()
  file(WRITE ${DIR}/crate/Cargo.toml
"[package]\nname = \"fetch\"\nversion = \"0.0.0\"\nedition = \"2021\"\n[dependencies]\nglslang-sys = \"=${VERSION}\"\n")
  file(WRITE ${DIR}/crate/src/lib.rs "")
  execute_process(COMMAND ${CARGO} vendor --quiet ${DIR}/vendor WORKING_DIRECTORY ${DIR}/crate
                  RESULT_VARIABLE failed OUTPUT_QUIET)
  file(GLOB source ${DIR}/vendor/glslang-sys*/native/glslang)
  if(failed OR NOT source)
    message(FATAL_ERROR "the crate glslang-sys ${VERSION} could not be fetched")
  endif()
elseif(NOT EXISTS ${DIR}/glslang)
  execute_process(COMMAND ${CMAKE_COMMAND} -G Ninja -S ${source} -B ${DIR}/build -DCMAKE_BUILD_TYPE=Release
                  -DENABLE_OPT=OFF -DENABLE_HLSL=OFF -DGLSLANG_TESTS=OFF
                  OUTPUT_FILE ${DIR}/configure.log ERROR_FILE ${DIR}/configure.log COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${CMAKE_COMMAND} --build ${DIR}/build --target glslang-standalone
                  OUTPUT_FILE ${DIR}/build.log ERROR_FILE ${DIR}/build.log COMMAND_ERROR_IS_FATAL ANY)
  file(COPY_FILE ${DIR}/build/StandAlone/glslang ${DIR}/glslang.new)
  file(RENAME ${DIR}/glslang.new ${DIR}/glslang)
endif()
