# The module for oneDNN, where its headers are (Debian: libdnnl-dev).  The library is not linked with
# it: benchmarks load it as the judge of our own kernels.
set(LK_ONEDNN AUTO CACHE STRING "Module for oneDNN 2: AUTO (if it is here), ON or OFF")
if(NOT LK_ONEDNN STREQUAL OFF AND NOT CMAKE_CROSSCOMPILING)
  find_path(LK_DNNL_INCLUDE oneapi/dnnl/dnnl.h)
  find_library(LK_DNNL dnnl)
  find_library(LK_GOMP NAMES libgomp.so.1) # the OpenMP that Debian's oneDNN runs on
endif()
if(LK_DNNL_INCLUDE AND LK_DNNL AND LK_GOMP)
  add_library(lockstep-onednn MODULE src/tensor/onednn/module.c)
  set_target_properties(lockstep-onednn PROPERTIES PREFIX ""
    LIBRARY_OUTPUT_DIRECTORY ${LK_MODULE_FOLDER})
  target_include_directories(lockstep-onednn PRIVATE src)
  target_include_directories(lockstep-onednn SYSTEM PRIVATE ${LK_DNNL_INCLUDE})
  target_link_libraries(lockstep-onednn PRIVATE lk_warnings ${LK_DNNL} ${LK_GOMP})
  install(TARGETS lockstep-onednn LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/lockstep)
elseif(LK_ONEDNN STREQUAL ON)
  message(FATAL_ERROR "LK_ONEDNN=ON, but there is no oneDNN 2: install libdnnl-dev")
elseif(NOT LK_ONEDNN STREQUAL OFF)
  message(STATUS "No module for oneDNN (package libdnnl-dev)")
endif()
