# The module of the CUDA executor: the only part that needs a CUDA toolkit with NCCL.  Without them
# the build continues, and --executor cuda says what is missing.
#
# The module is compiled for A100 (sm_80), H100 and H200 (sm_90a), B200 (sm_100), and as PTX for
# newer GPUs.  With -DWEFT_CUDA_ARCHITECTURES=quick it has machine code for H100 and H200 only, and
# PTX of sm_80, of which the driver of any other GPU makes machine code when the module is first
# used.  It runs on the same GPUs and takes half the time to build; the launcher ./weft chooses it
# for a new build folder on a machine without a GPU.  -UWEFT_CUDA_ARCHITECTURES goes back to all.
# The CUDA runtime is linked statically, so that the module loads without a driver and can report
# that the driver is missing.
include(CheckLanguage)
check_language(CUDA)
find_package(CUDAToolkit 12.8 QUIET)
find_path(WEFT_CUPTI_INCLUDE cupti.h HINTS ${CUDAToolkit_INCLUDE_DIRS}
          PATH_SUFFIXES ../extras/CUPTI/include)
find_path(WEFT_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(WEFT_NCCL nccl HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT} PATH_SUFFIXES lib lib64)
# ncclAlltoAll exists since NCCL 2.28.
if(WEFT_NCCL_INCLUDE)
  file(STRINGS ${WEFT_NCCL_INCLUDE}/nccl.h nccl_version REGEX "#define NCCL_VERSION_CODE ")
  string(REGEX MATCH "[0-9]+$" nccl_version "${nccl_version}")
endif()
if(NOT CMAKE_CUDA_COMPILER OR NOT CUDAToolkit_FOUND OR NOT WEFT_NCCL OR NOT nccl_version GREATER_EQUAL 22800)
  message(STATUS "No CUDA toolkit 12.8 or newer with NCCL 2.28 or newer: built without --executor cuda")
  return()
endif()
set(every 80-real 90a-real 100)
set(WEFT_CUDA_ARCHITECTURES ${every} CACHE STRING
    "GPUs that the module is built for: quick, or a list like CMAKE_CUDA_ARCHITECTURES")
set(CMAKE_CUDA_ARCHITECTURES ${WEFT_CUDA_ARCHITECTURES})
set(of_80 "") # what is made of PTX for sm_80, if not CMake but the loop below chooses it
if("${every}" STREQUAL "${WEFT_CUDA_ARCHITECTURES}")
  set(CMAKE_CUDA_ARCHITECTURES 100)
  set(of_80 sm_80)
elseif(WEFT_CUDA_ARCHITECTURES STREQUAL quick)
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  set(of_80 compute_80)
endif()
set(CMAKE_CUDA_STANDARD 17)
enable_language(CUDA)
# nvcc's -O is for host code, which only launches the kernels here: -O1 shortens the build.
string(REPLACE -O3 -O1 CMAKE_CUDA_FLAGS_RELEASE "${CMAKE_CUDA_FLAGS_RELEASE}")

file(GLOB cuda_kernels CONFIGURE_DEPENDS kernels/cuda/*.cu kernels/cuda/*.c)
add_library(weft_cuda MODULE exec_gpu/cuda/module/calls_cuda.c exec_gpu/cuda/module/cupti.c exec_gpu/cuda/module/driver.c
            exec_gpu/cuda/module/fused.c exec_gpu/cuda/module/libraries.c exec_gpu/cuda/module/sums.cu ${cuda_kernels})
# Warnings are errors, except for GLib's printf attribute, which nvcc does not know.
target_compile_options(weft_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:C>:-Werror>
  $<$<COMPILE_LANGUAGE:CUDA>:-diag-suppress=1217 -Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Werror>)
set_property(SOURCE kernels/cuda/optimizer.cu APPEND PROPERTY COMPILE_OPTIONS -fmad=false)
# For a source that does not test the architecture, the compiler generates the same PTX for sm_80
# and sm_90a: such a source is compiled once and assembled for both.  The loop over headers runs
# three times, because headers include each other three deep.
file(GLOB cuda_headers CONFIGURE_DEPENDS kernels/cuda/*.cuh)
file(GLOB cuda_sources CONFIGURE_DEPENDS kernels/cuda/*.cu exec_gpu/cuda/module/*.cu)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${cuda_headers} ${cuda_sources})
set(asks "__CUDA_ARCH|<cub/")
foreach(header ${cuda_headers} ${cuda_headers} ${cuda_headers})
  file(STRINGS ${header} found REGEX "${asks}")
  if(found)
    get_filename_component(name ${header} NAME)
    string(APPEND asks "|include .*/${name}")
  endif()
endforeach()
foreach(source ${cuda_sources})
  set(code --generate-code=arch=compute_80,code=[${of_80},sm_90a])
  file(STRINGS ${source} found REGEX "${asks}")
  if(found)
    set(code --generate-code=arch=compute_80,code=[${of_80}] --generate-code=arch=compute_90a,code=[sm_90a])
  endif()
  if(of_80)
    set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS ${code})
  endif()
endforeach()
string(REGEX MATCH "90a|quick" for_90a "${WEFT_CUDA_ARCHITECTURES}") # the only architecture with wgmma
set_source_files_properties(exec_gpu/cuda/module/calls_cuda.c PROPERTIES COMPILE_DEFINITIONS
  WEFT_CUDA_QUICK=$<STREQUAL:${of_80},compute_80>)
target_compile_definitions(weft_cuda PRIVATE WEFT_CUDA_90A=$<BOOL:${for_90a}>)
target_include_directories(weft_cuda SYSTEM PRIVATE ${WEFT_NCCL_INCLUDE})
# CUPTI is part of the toolkit.  The module loads it when times of kernels are requested.
if(WEFT_CUPTI_INCLUDE)
  target_include_directories(weft_cuda SYSTEM PRIVATE ${WEFT_CUPTI_INCLUDE})
  target_compile_definitions(weft_cuda PRIVATE WEFT_CUPTI_MAJOR=${CUDAToolkit_VERSION_MAJOR})
endif()
target_link_libraries(weft_cuda PRIVATE weft_kernels weft_core CUDA::cudart_static CUDA::cublasLt ${WEFT_NCCL})
# A missing symbol is an error here: otherwise the module would fail to load on a machine with a GPU.
target_link_options(weft_cuda PRIVATE -Wl,-Bsymbolic -Wl,-z,defs)
set_target_properties(weft_cuda PROPERTIES CUDA_RUNTIME_LIBRARY Static)
# CMake assumes that the loader searches the toolkit's folder.  These run paths are for systems
# where it does not; LD_LIBRARY_PATH has priority.
get_filename_component(folders ${WEFT_NCCL} DIRECTORY)
list(APPEND folders ${CUDAToolkit_LIBRARY_DIR})
list(REMOVE_DUPLICATES folders)
set_property(TARGET weft_cuda APPEND PROPERTY BUILD_RPATH ${folders})
set_property(TARGET weft_cuda APPEND PROPERTY INSTALL_RPATH ${folders})
install(TARGETS weft_cuda DESTINATION ${CMAKE_INSTALL_LIBDIR}/weft)

target_compile_definitions(weft_exec_gpu PRIVATE WEFT_CUDA_MODULE="$<TARGET_FILE:weft_cuda>"
  WEFT_CUDA_INSTALLED="${CMAKE_INSTALL_LIBDIR}/weft/$<TARGET_FILE_NAME:weft_cuda>")
add_dependencies(weft_exec_gpu weft_cuda)
