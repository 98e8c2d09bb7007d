# What the Python wheel holds besides python/lockstep: the shared library, the command, the modules for
# MPI, and the licences of the libraries in both.  scikit-build-core sets SKBUILD and installs the component
# `wheel` (pyproject.toml).
set_target_properties(lockstep_shared PROPERTIES VERSION ${LK_SOVERSION}) # a wheel has no links
install(TARGETS lockstep_shared LIBRARY DESTINATION lockstep/lib NAMELINK_SKIP COMPONENT wheel)
install(TARGETS lockstep_command RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT wheel)
# Modules twice: the shared library looks for them beside itself, and the command in ../lib/lockstep.
foreach(name IN LISTS LK_MPI_MODULES)
  foreach(folder lockstep/lib ${SKBUILD_DATA_DIR}/lib/lockstep)
    install(FILES $<TARGET_FILE:lockstep-mpi-${name}> DESTINATION ${folder} COMPONENT wheel)
  endforeach()
endforeach()

# Messages name source files, and not the temporary folder in which a wheel is built.
foreach(target lockstep lk_cli lockstep_command)
  target_compile_options(${target} PRIVATE -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)
endforeach()

set(licensed ${LK_LIB_jansson} ${LK_LIB_turbojpeg} ${LK_LIB_png16} ${LK_LIB_z} ${LK_LIB_nettle}
  ${LK_XXHASH_INCLUDE}/xxhash.h)
if(LK_LIB_uring)
  list(APPEND licensed ${LK_LIB_uring})
endif()
set(licenses ${CMAKE_BINARY_DIR}/LICENSES)
execute_process(COMMAND ${PROJECT_SOURCE_DIR}/tools/licenses ${licensed}
  OUTPUT_FILE ${licenses} COMMAND_ERROR_IS_FATAL ANY)
install(FILES ${licenses} DESTINATION ${SKBUILD_METADATA_DIR}/licenses COMPONENT wheel)
