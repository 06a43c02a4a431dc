# The Vulkan device: compiles src/dev/vulkan/shaders to SPIR-V inside the program. Included before the
# library exists; changes OB_SOURCES.
#
# The compiler is glslang 16 from the source in the crate glslang-sys, because the distribution's knows
# neither cooperative matrices nor the integer dot product. It is built once and kept outside the tree,
# like textkit. Without it, or with -DOB_GLSLANG=PROGRAM, another glslang serves, and kernels that it
# cannot compile are left out: the device then runs without them. Without any, or without Vulkan's
# headers, 1bit is built without the device.
option(OB_VULKAN "the Vulkan device" ON)
set(OB_GLSLANG "" CACHE FILEPATH "a glslang to compile shaders with; empty: built from a crate, else the system's")
set(OB_GLSLANG_CRATE 0.9.2)

set(vk_dir ${CMAKE_SOURCE_DIR}/src/dev/vulkan)
find_path(OB_VULKAN_HEADERS vulkan/vulkan_core.h)
set(vk_glslang ${OB_GLSLANG})
set(vk_build_glslang OFF)

if(OB_VULKAN AND OB_VULKAN_HEADERS AND NOT vk_glslang)
  if(DEFINED ENV{XDG_CACHE_HOME})
    set(vk_cache $ENV{XDG_CACHE_HOME})
  else()
    set(vk_cache $ENV{HOME}/.cache)
  endif()
  set(vk_cache ${vk_cache}/1bit-build/glslang-${OB_GLSLANG_CRATE})
  set(vk_glslang ${vk_cache}/glslang)
  if(NOT EXISTS ${vk_glslang})
    include(CheckLanguage)
    check_language(CXX)
    find_program(OB_CARGO cargo HINTS $ENV{CARGO_HOME}/bin $ENV{HOME}/.cargo/bin)
    execute_process(COMMAND ${CMAKE_COMMAND} -DCARGO=${OB_CARGO} -DVERSION=${OB_GLSLANG_CRATE} -DDIR=${vk_cache}
                    -DSTEP=fetch -P ${CMAKE_CURRENT_LIST_DIR}/glslang.cmake RESULT_VARIABLE vk_fetch)
    if(CMAKE_CXX_COMPILER AND vk_fetch EQUAL 0)
      set(vk_build_glslang ON)
    else()
      find_program(OB_SYSTEM_GLSLANG NAMES glslang glslangValidator)
      set(vk_glslang ${OB_SYSTEM_GLSLANG})
    endif()
  endif()
endif()

if(NOT OB_VULKAN OR NOT OB_VULKAN_HEADERS OR NOT vk_glslang)
  set(OB_VULKAN_BUILT OFF)
  list(FILTER OB_SOURCES EXCLUDE REGEX "/dev/vulkan/")
  if(OB_VULKAN)
    message(WARNING "Building without the Vulkan device: install libvulkan-dev and glslang-tools "
                    "(tools/setup.sh does), then configure again.")
  endif()
  return()
endif()
set(OB_VULKAN_BUILT ON)

# What this compiler knows. One that is still to be built knows everything.
set(vk_has_coopmat ON)
set(vk_has_dot ON)
if(NOT vk_build_glslang)
  foreach(feature coopmat:GL_KHR_cooperative_matrix dot:GL_EXT_integer_dot_product)
    string(REPLACE ":" ";" feature ${feature})
    list(GET feature 0 short)
    list(GET feature 1 extension)
    set(probe ${CMAKE_BINARY_DIR}/CMakeFiles/vk_probe.comp)
    file(WRITE ${probe} "#version 460\n#extension ${extension} : require\nvoid main() {}\n")
    execute_process(COMMAND ${vk_glslang} -V --target-env vulkan1.3 ${probe} -o ${probe}.spv
                    RESULT_VARIABLE vk_probe OUTPUT_QUIET ERROR_QUIET)
    if(NOT vk_probe EQUAL 0)
      set(vk_has_${short} OFF)
      message(STATUS "Vulkan: ${vk_glslang} does not know ${extension}; kernels that use it are left out")
    endif()
  endforeach()
endif()

set(vk_gen ${CMAKE_BINARY_DIR}/vulkan)
file(MAKE_DIRECTORY ${vk_gen})
file(GLOB vk_includes CONFIGURE_DEPENDS ${vk_dir}/shaders/*.glsl)
set(vk_headers "")
set(vk_lines "")
set(vk_rows "")

if(vk_build_glslang)
  add_custom_command(
    OUTPUT ${vk_glslang}
    COMMAND ${CMAKE_COMMAND} -DVERSION=${OB_GLSLANG_CRATE} -DDIR=${vk_cache} -DSTEP=build
            -P ${CMAKE_CURRENT_LIST_DIR}/glslang.cmake
    COMMENT "Building the shader compiler glslang (once, some minutes)" VERBATIM)
endif()

# kernel(NAME SOURCE DEFINES...): one entry of vk_shaders.
function(kernel name source)
  set(out ${vk_gen}/${name}.h)
  add_custom_command(
    OUTPUT ${out}
    COMMAND ${vk_glslang} -V --quiet --target-env vulkan1.3 -S comp ${ARGN} --vn vk_code_${name} -o ${out}
            ${vk_dir}/shaders/${source}.comp
    DEPENDS ${vk_dir}/shaders/${source}.comp ${vk_includes} ${vk_glslang}
    COMMENT "Shader ${name}" VERBATIM)
  set(vk_headers ${vk_headers} ${out} PARENT_SCOPE)
  set(vk_lines "${vk_lines}#include \"${name}.h\"\n" PARENT_SCOPE)
  set(vk_rows "${vk_rows}    {\"${name}\", vk_code_${name}, sizeof vk_code_${name}},\n" PARENT_SCOPE)
endfunction()

foreach(k norm norm_rows turn rope kv_write attn attn_one linear_any quantise pool
          to_f16 glu_form conv1d gdn gdn_prep gdn_scan moe_route moe_router moe_sort moe_sum
          cca hc_mix hc_post csa_compress csa_keep csa_score csa_pick csa_attn top_k)
  kernel(${k} ${k})
endforeach()
kernel(heads heads -DSUBGROUP=1)
kernel(heads_plain heads -DSUBGROUP=0)
if(vk_has_coopmat)
  kernel(attn_cm attn_cm)
endif()
set(op 0)
foreach(k rows_out glu add scale to_host vectors merge)
  kernel(${k} row -DOP=${op})
  math(EXPR op "${op} + 1")
endforeach()
set(op 0)
foreach(k act affine gate split join)
  kernel(${k} parts -DOP=${op})
  math(EXPR op "${op} + 1")
endforeach()
# Type numbers are GGUF's.
foreach(t f32:0 f16:1 bf16:30 q4_0:2 q4_1:3 q5_0:6 q5_1:7 q8_0:8 q4_k:12 q5_k:13 q6_k:14 mxfp4:39)
  string(REPLACE ":" ";" t ${t})
  list(GET t 0 type)
  list(GET t 1 id)
  kernel(embed_${type} embed -DTYPE=${id})
  kernel(gemm_${type} gemm -DTYPE=${id})
  kernel(matvec_f32_${type} matvec -DTYPE=${id} -DACT=0 -DSUBGROUP=1 -DGLU=0 -DROUTER=0)
  kernel(matvec_plain_f32_${type} matvec -DTYPE=${id} -DACT=0 -DSUBGROUP=0 -DGLU=0 -DROUTER=0)
  kernel(linear_heads_${type} linear_heads -DTYPE=${id} -DSUBGROUP=1)
  kernel(linear_heads_plain_${type} linear_heads -DTYPE=${id} -DSUBGROUP=0)
  foreach(k moe_up moe_down)
    kernel(${k}_f32_${type} ${k} -DTYPE=${id} -DACT=0 -DSUBGROUP=1)
    kernel(${k}_plain_f32_${type} ${k} -DTYPE=${id} -DACT=0 -DSUBGROUP=0)
    if(vk_has_dot AND NOT type MATCHES "^b?f")
      kernel(${k}_i8_${type} ${k} -DTYPE=${id} -DACT=1 -DSUBGROUP=1)
      if(type MATCHES "^q[45]_k")
        kernel(${k}_pairs_i8_${type} ${k} -DTYPE=${id} -DACT=1 -DSUBGROUP=1 -DPAIRED=1)
      endif()
      kernel(${k}_plain_i8_${type} ${k} -DTYPE=${id} -DACT=1 -DSUBGROUP=0)
    endif()
  endforeach()
  if(vk_has_dot AND NOT type MATCHES "^b?f")
    set(forms matvec_i8:0)
    if(type MATCHES "^q[45]_k")
      list(APPEND forms matvec_pairs_i8:1)
    endif()
    foreach(f ${forms})
      string(REPLACE ":" ";" f ${f})
      list(GET f 0 name)
      list(GET f 1 paired)
      kernel(${name}_${type} matvec -DTYPE=${id} -DACT=1 -DSUBGROUP=1 -DPAIRED=${paired} -DGLU=0 -DROUTER=0)
      kernel(${name}_${type}_router matvec -DTYPE=${id} -DACT=1 -DSUBGROUP=1 -DPAIRED=${paired} -DGLU=0 -DROUTER=1)
      kernel(${name}_${type}_glu matvec -DTYPE=${id} -DACT=1 -DSUBGROUP=1 -DPAIRED=${paired} -DGLU=1 -DROUTER=0)
    endforeach()
    kernel(matvec_plain_i8_${type} matvec -DTYPE=${id} -DACT=1 -DSUBGROUP=0 -DGLU=0 -DROUTER=0)
  endif()
  if(vk_has_coopmat AND EXISTS ${vk_dir}/shaders/gemm_cm.comp)
    kernel(gemm_cm_${type} gemm_cm -DTYPE=${id} -DGLU=0)
    if(NOT type MATCHES "^b?f")
      kernel(gemm_glu_${type} gemm_cm -DTYPE=${id} -DGLU=1)
    endif()
    kernel(moe_gemm_up_${type} moe_gemm -DTYPE=${id} -DGLU=1)
    kernel(moe_gemm_down_${type} moe_gemm -DTYPE=${id} -DGLU=0)
  endif()
endforeach()

file(CONFIGURE OUTPUT ${vk_gen}/vk_shaders.c CONTENT
"/* Generated by cmake/vulkan.cmake from src/dev/vulkan/shaders. */
#include \"dev/vulkan/vk_int.h\"

@vk_lines@
const vk_shader vk_shaders[] = {
@vk_rows@    {NULL, NULL, 0},
};
" @ONLY)
list(APPEND OB_SOURCES ${vk_gen}/vk_shaders.c)
set_source_files_properties(${vk_gen}/vk_shaders.c PROPERTIES OBJECT_DEPENDS "${vk_headers}"
                            INCLUDE_DIRECTORIES ${vk_gen})
set_source_files_properties(${CMAKE_SOURCE_DIR}/src/dev/registry.c PROPERTIES COMPILE_DEFINITIONS OB_HAVE_VULKAN)
