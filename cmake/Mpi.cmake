# Modules for MPI: src/link/mpi/module.c once for each MPI whose compiler wrapper is here.
# The library is not linked with MPI; it loads the module that fits when a program asks for it.
set(LK_MPI AUTO CACHE STRING "Modules for Open MPI and MPICH: AUTO (those that are here), ON (both) or OFF")
set(LK_MODULE_FOLDER ${CMAKE_BINARY_DIR}/lib/lockstep)
set_source_files_properties(src/launch/modules.c PROPERTIES COMPILE_DEFINITIONS
  "LK_MODULE_FOLDER=\"${CMAKE_INSTALL_FULL_LIBDIR}/lockstep\"")
set(LK_MPI_MODULES "")

# What an MPI's wrapper would add to the compiler's command line.
function(lk_mpi_flags out wrapper argument)
  execute_process(COMMAND ${wrapper} ${argument} OUTPUT_VARIABLE said ERROR_QUIET
    OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    set(said "")
  endif()
  separate_arguments(said UNIX_COMMAND "${said}")
  set(${out} ${said} PARENT_SCOPE)
endfunction()

function(lk_mpi_module name package wrapper argument)
  find_program(LK_MPICC_${name} NAMES ${wrapper} DOC "Compiler wrapper of ${name}")
  if(CMAKE_CROSSCOMPILING OR NOT LK_MPICC_${name})
    if(LK_MPI STREQUAL ON)
      message(FATAL_ERROR "LK_MPI=ON, but there is no ${wrapper}: install ${package}")
    endif()
    message(STATUS "No module for ${name}: no ${wrapper} (package ${package})")
    return()
  endif()
  lk_mpi_flags(flags ${LK_MPICC_${name}} ${argument})
  set(folders ${flags})
  list(FILTER folders INCLUDE REGEX "^-I")
  list(TRANSFORM folders REPLACE "^-I" "")
  list(FILTER flags INCLUDE REGEX "^-[lL]")
  add_library(lockstep-mpi-${name} MODULE src/link/mpi/module.c)
  set_target_properties(lockstep-mpi-${name} PROPERTIES PREFIX ""
    LIBRARY_OUTPUT_DIRECTORY ${LK_MODULE_FOLDER})
  target_include_directories(lockstep-mpi-${name} PRIVATE src include)
  target_include_directories(lockstep-mpi-${name} SYSTEM PRIVATE ${folders})
  target_link_libraries(lockstep-mpi-${name} PRIVATE lk_warnings ${flags})
  set(LK_MPI_INCLUDE_${name} ${folders} PARENT_SCOPE)
  set(LK_MPI_FLAGS_${name} ${flags} PARENT_SCOPE)
  install(TARGETS lockstep-mpi-${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/lockstep)
  set(LK_MPI_MODULES ${LK_MPI_MODULES} ${name} PARENT_SCOPE)
endfunction()

if(NOT LK_MPI STREQUAL OFF)
  lk_mpi_module(openmpi libopenmpi-dev mpicc.openmpi --showme)
  lk_mpi_module(mpich libmpich-dev mpicc.mpich -show)
endif()
