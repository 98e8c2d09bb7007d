# Modules for MPI: src/link/mpi/module.c once for each of two binary interfaces, that of Open MPI and
# that of MPICH, whose headers are here.  Neither the library nor a module is linked with MPI: a
# program that asks for it loads the MPI that has started it, and the module that fits.
set(LK_MPI AUTO CACHE STRING "Modules for Open MPI and MPICH: AUTO (those that are here), ON (both) or OFF")
set(LK_MODULE_FOLDER ${CMAKE_BINARY_DIR}/lib/lockstep)
set_source_files_properties(src/launch/modules.c PROPERTIES COMPILE_DEFINITIONS
  "LK_MODULE_FOLDER=\"${CMAKE_INSTALL_FULL_LIBDIR}/lockstep\"")
set(LK_MPI_MODULES "")
add_custom_target(lockstep_modules)

# What an MPI's wrapper would add to the compiler's command line; nothing if its mpi.h does not define
# one of the names that match `macro`.
function(lk_mpi_flags out wrapper macro)
  set(${out} "" PARENT_SCOPE)
  execute_process(COMMAND ${wrapper} -show OUTPUT_VARIABLE said ERROR_QUIET
    OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    return()
  endif()
  separate_arguments(said UNIX_COMMAND "${said}")
  set(includes ${said})
  list(FILTER includes INCLUDE REGEX "^-I")
  file(WRITE ${CMAKE_BINARY_DIR}/mpi.c "#include <mpi.h>\n")
  execute_process(COMMAND ${CMAKE_C_COMPILER} ${includes} -E -dM ${CMAKE_BINARY_DIR}/mpi.c
    OUTPUT_VARIABLE macros ERROR_QUIET RESULT_VARIABLE status)
  if(status EQUAL 0 AND macros MATCHES "#define (${macro}) ")
    set(${out} ${said} PARENT_SCOPE)
  endif()
endfunction()

# Adds the module `name` for an MPI whose mpi.h defines `macro`.  Its wrapper is one of those named
# after `macro`, or LK_MPICC_name.
function(lk_mpi_module name package macro)
  set(flags "")
  foreach(wrapper IN LISTS LK_MPICC_${name} ARGN)
    find_program(found_wrapper NAMES ${wrapper} NO_CACHE)
    if(found_wrapper AND NOT flags)
      lk_mpi_flags(flags ${found_wrapper} "${macro}")
    endif()
    unset(found_wrapper)
  endforeach()
  if(CMAKE_CROSSCOMPILING OR NOT flags)
    if(LK_MPI STREQUAL ON)
      message(FATAL_ERROR "LK_MPI=ON, but there is no compiler wrapper of ${name}: install ${package}, or set "
        "LK_MPICC_${name} to its mpicc")
    endif()
    message(STATUS "No module for ${name}: no compiler wrapper (package ${package}; or set LK_MPICC_${name})")
    return()
  endif()
  set(folders ${flags})
  list(FILTER folders INCLUDE REGEX "^-I")
  list(TRANSFORM folders REPLACE "^-I" "")
  list(FILTER flags INCLUDE REGEX "^-([lL]|Wl,-rpath|Wl,/)")
  add_library(lockstep-mpi-${name} MODULE src/link/mpi/module.c)
  set_target_properties(lockstep-mpi-${name} PROPERTIES PREFIX ""
    LIBRARY_OUTPUT_DIRECTORY ${LK_MODULE_FOLDER})
  target_include_directories(lockstep-mpi-${name} PRIVATE src include)
  target_include_directories(lockstep-mpi-${name} SYSTEM PRIVATE ${folders})
  target_link_libraries(lockstep-mpi-${name} PRIVATE lk_warnings)
  add_dependencies(lockstep_modules lockstep-mpi-${name})
  set(LK_MPI_INCLUDE_${name} ${folders} PARENT_SCOPE)
  set(LK_MPI_FLAGS_${name} ${flags} PARENT_SCOPE)
  install(TARGETS lockstep-mpi-${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/lockstep
    COMPONENT command)
  set(LK_MPI_MODULES ${LK_MPI_MODULES} ${name} PARENT_SCOPE)
endfunction()

if(NOT LK_MPI STREQUAL OFF)
  lk_mpi_module(openmpi libopenmpi-dev OPEN_MPI mpicc.openmpi mpicc)
  lk_mpi_module(mpich libmpich-dev "MPICH_VERSION|MPICH_NUMVERSION|I_MPI_NUMVERSION" mpicc.mpich mpicc mpiicc mpiicx)
endif()
