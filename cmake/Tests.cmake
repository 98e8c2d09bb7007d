# Every src/ROOM/x_test.c and tests/*/x_test.c is one program, run by ctest under the name ROOM.x.
find_path(LK_CMOCKA_INCLUDE cmocka.h REQUIRED)
find_library(LK_CMOCKA cmocka REQUIRED)

# The target tests.ROOM builds what the tests named ROOM.* run, the target tests all of them: nothing
# that is only a benchmark.
function(lk_test_programs room)
  if(NOT TARGET tests.${room})
    add_custom_target(tests.${room})
    add_dependencies(tests tests.${room})
  endif()
  foreach(program IN LISTS ARGN)
    add_dependencies(tests.${room} ${program})
  endforeach()
endfunction()

add_custom_target(tests)
foreach(room IN LISTS LK_ROOMS) # also of rooms without tests
  lk_test_programs(${room})
endforeach()

file(GLOB_RECURSE test_sources CONFIGURE_DEPENDS src/*_test.c tests/*_test.c)
foreach(path IN LISTS test_sources)
  get_filename_component(stem ${path} NAME_WE)
  get_filename_component(folder ${path} DIRECTORY)
  file(RELATIVE_PATH room ${PROJECT_SOURCE_DIR} ${folder})
  string(REGEX REPLACE "^(src|tests)/" "" room ${room})
  string(REPLACE "/" "." room ${room})
  string(REGEX REPLACE "_test$" "" stem ${stem})
  set(name ${room}.${stem})
  add_executable(test.${name} ${path})
  set_target_properties(test.${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_include_directories(test.${name} PRIVATE src tests)
  target_link_libraries(test.${name} PRIVATE lk_cli lockstep lk_warnings lk_dependencies ${LK_CMOCKA})
  target_compile_definitions(test.${name} PRIVATE
    LK_TEST_COMMAND="$<TARGET_FILE:lockstep_command>" LK_TEST_SOURCE="${PROJECT_SOURCE_DIR}")
  # The programs, not what they test: half of the time that they take to compile.  Warnings that need
  # more of the optimizer come from the build with clang.
  if(CMAKE_C_COMPILER_ID STREQUAL GNU AND CMAKE_BUILD_TYPE STREQUAL Release)
    target_compile_options(test.${name} PRIVATE -O1)
  endif()
  string(REGEX REPLACE "\\.c$" ".wrap" wrapped ${path}) # x_test.wrap: functions that x_test.c stands before
  if(EXISTS ${wrapped})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${wrapped})
    file(STRINGS ${wrapped} functions)
    list(TRANSFORM functions PREPEND "LINKER:--wrap=")
    target_link_options(test.${name} PRIVATE ${functions})
  endif()
  add_dependencies(test.${name} lockstep_command)
  add_test(NAME ${name} COMMAND test.${name})
  string(REGEX REPLACE "\\..*" "" top ${room})
  lk_test_programs(${top} test.${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 1800 SKIP_RETURN_CODE 77 LABELS ${room}
    ENVIRONMENT XDG_CACHE_HOME=${CMAKE_BINARY_DIR}/cache) # tests leave nothing in anybody's home
endforeach()

set_tests_properties(comm.huge PROPERTIES RUN_SERIAL TRUE) # it moves 50 GiB

# The longest first, also where ctest has not seen them before.
foreach(name faults.death exactness.runs faults.disk parallel.parallel comm.algorithm.algorithm
    train.loop.hosts comm.collectives comm.conformance launch.rendezvous.meeting cli.bench
    launch.job.rebuild_hosts tensor.ops.gemm tensor.ops.conv tensor.ops.conv_bf16 faults.survive
    faults.survive_hosts faults.return faults.join cli.trace cli.bench_step cli.plan faults.compressed
    faults.restart exactness.compression exactness.local comm.span.seeds parallel.joint
    parallel.features.groups_survive parallel.recover.hosts hosts.foreign hosts.train exactness.live
    exactness.clients launch.keeper.keeper cli.launched comm.coll.tree_reduce comm.span.scratch
    comm.span.span comm.started parallel.features.groups parallel.strategies.units train.loop.offload
    tensor.ops.attention_bf16 tensor.ops.parts device.combine)
  set_tests_properties(${name} PROPERTIES COST 100)
endforeach()

# Modules are loaded by tests of these rooms, and house.install installs them.
foreach(module mpi-openmpi mpi-mpich onednn)
  foreach(room mpi tensor house)
    if(TARGET lockstep-${module})
      lk_test_programs(${room} lockstep-${module})
    endif()
  endforeach()
endforeach()

# Under MPI: mpirun starts the ranks.  ThreadSanitizer knows nothing of what MPI does.
add_executable(mpi_ranks tests/mpi/ranks.c)
set_target_properties(mpi_ranks PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
target_include_directories(mpi_ranks PRIVATE src)
target_link_libraries(mpi_ranks PRIVATE lockstep lk_warnings lk_dependencies)
lk_test_programs(mpi mpi_ranks lockstep_command)
# For each binary interface of MPI: groups.c, which is linked with an MPI, and the library counted.c,
# which is preloaded and works with the MPI that is loaded later.
foreach(name IN LISTS LK_MPI_MODULES)
  add_executable(mpi_groups_${name} tests/mpi/groups.c)
  set_target_properties(mpi_groups_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(mpi_groups_${name} PRIVATE lockstep)
  add_library(mpi_counted_${name} MODULE tests/mpi/counted.c)
  set_target_properties(mpi_counted_${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(mpi_groups_${name} PRIVATE ${LK_MPI_FLAGS_${name}})
  target_link_options(mpi_counted_${name} PRIVATE -Wl,-z,lazy)
  foreach(target mpi_groups_${name} mpi_counted_${name})
    target_include_directories(${target} SYSTEM PRIVATE ${LK_MPI_INCLUDE_${name}})
    target_link_libraries(${target} PRIVATE lk_warnings)
    lk_test_programs(mpi ${target})
  endforeach()
endforeach()
set(version_openmpi "Open MPI 5")
set(version_mpich "MPICH 5")
foreach(name openmpi mpich) # of which the sanitizer of addresses needs to see one
  set(groups none)
  set(counter "")
  if(TARGET mpi_groups_${name})
    set(groups $<TARGET_FILE:mpi_groups_${name}>)
    if(NOT LK_SANITIZE) # whose libraries must be loaded first
      set(counter $<TARGET_FILE:mpi_counted_${name}>)
    endif()
  endif()
  if(NOT LK_SANITIZE OR (LK_SANITIZE MATCHES address AND name STREQUAL openmpi))
    add_test(NAME mpi.${name}
      COMMAND ${PROJECT_SOURCE_DIR}/tests/mpi/run ${name} $<TARGET_FILE:mpi_ranks> ${LK_MODULE_FOLDER}
        $<TARGET_FILE:lockstep_command> ${groups})
    add_test(NAME mpi.train.${name}
      COMMAND ${PROJECT_SOURCE_DIR}/tests/mpi/train ${name} $<TARGET_FILE:lockstep_command>
        ${LK_MODULE_FOLDER} "${counter}")
    set_tests_properties(mpi.${name} mpi.train.${name} PROPERTIES LABELS mpi SKIP_RETURN_CODE 77
      TIMEOUT 1500 PROCESSORS 2 RESOURCE_LOCK mpi)
  endif()
  if(NOT LK_SANITIZE) # the packages of PyPI
    add_test(NAME mpi.other.${name}
      COMMAND ${PROJECT_SOURCE_DIR}/tests/mpi/other ${name} ${version_${name}}
        $<TARGET_FILE:lockstep_command> ${LK_MODULE_FOLDER} "${counter}")
    set_tests_properties(mpi.other.${name} PROPERTIES LABELS mpi SKIP_RETURN_CODE 77 TIMEOUT 1500
      PROCESSORS 2 RESOURCE_LOCK mpi)
  endif()
endforeach()

# The house itself: each of these is a script that prints what is wrong.
add_test(NAME house.floors COMMAND ${PROJECT_SOURCE_DIR}/tools/floors ${PROJECT_SOURCE_DIR}/src)
add_test(NAME house.tidy COMMAND ${PROJECT_SOURCE_DIR}/tools/tidy ${PROJECT_SOURCE_DIR})
add_test(NAME house.floors_refuse COMMAND ${PROJECT_SOURCE_DIR}/tests/house/floors ${PROJECT_SOURCE_DIR})
add_test(NAME house.headers COMMAND ${PROJECT_SOURCE_DIR}/tests/house/headers ${PROJECT_SOURCE_DIR})
add_test(NAME house.dev COMMAND ${PROJECT_SOURCE_DIR}/tests/house/dev ${PROJECT_SOURCE_DIR})
add_test(NAME house.options COMMAND ${PROJECT_SOURCE_DIR}/tests/house/options ${PROJECT_SOURCE_DIR})
add_test(NAME house.site COMMAND ${PROJECT_SOURCE_DIR}/tests/site/run ${PROJECT_SOURCE_DIR})
add_test(NAME house.layout COMMAND ${PROJECT_SOURCE_DIR}/tests/house/layout ${PROJECT_SOURCE_DIR})
if(LK_SHARED)
  add_test(NAME house.exports
    COMMAND ${PROJECT_SOURCE_DIR}/tests/house/exports ${PROJECT_SOURCE_DIR} $<TARGET_FILE:lockstep_shared>
      $<TARGET_FILE:lockstep_command>)
  set_tests_properties(house.exports PROPERTIES LABELS house SKIP_RETURN_CODE 77 TIMEOUT 1500)
  target_compile_definitions(test.house.load PRIVATE LK_TEST_LIBRARY="$<TARGET_FILE:lockstep_shared>")
  add_dependencies(test.house.load lockstep_shared)
  lk_test_programs(house lockstep_shared)
endif()
add_test(NAME house.install
  COMMAND ${PROJECT_SOURCE_DIR}/tests/install/run ${PROJECT_SOURCE_DIR} ${CMAKE_BINARY_DIR})
lk_test_programs(house lockstep lockstep_command)
if(NOT CMAKE_CROSSCOMPILING)
  add_dependencies(tests.house man completions) # house.install installs everything
endif()
add_test(NAME house.bench COMMAND ${PROJECT_SOURCE_DIR}/tests/bench/run ${PROJECT_SOURCE_DIR}
  ${CMAKE_BINARY_DIR}/bench)
set_tests_properties(house.floors house.tidy house.floors_refuse house.headers house.options house.layout house.site
  house.install house.bench PROPERTIES
  LABELS house SKIP_RETURN_CODE 77 TIMEOUT 1500)

# What tools read of a run: log, event files, metrics.  TensorBoard's own reader is asked where some
# python3 has it.
if(NOT CMAKE_CROSSCOMPILING)
  add_test(NAME cli.logs COMMAND ${PROJECT_SOURCE_DIR}/tests/cli/logs $<TARGET_FILE:lockstep_command>
    ${PROJECT_SOURCE_DIR})
  add_test(NAME cli.random_lines
    COMMAND ${PROJECT_SOURCE_DIR}/tests/cli/random_lines $<TARGET_FILE:lockstep_command> 150)
  add_test(NAME cli.completion
    COMMAND ${PROJECT_SOURCE_DIR}/tests/cli/completion $<TARGET_FILE:lockstep_command>)
  set_tests_properties(cli.logs cli.random_lines cli.completion PROPERTIES LABELS cli TIMEOUT 600)
endif()

# Bits frozen in a file, so that no compiler and no change of ours alters them unnoticed.  Under an
# emulator one worker computes as a thread: processes are what the emulator does not do well.
set(golden ${PROJECT_SOURCE_DIR}/tests/exactness/golden ${PROJECT_SOURCE_DIR} $<TARGET_FILE:lockstep_command>)
if(CMAKE_CROSSCOMPILING)
  list(APPEND golden --workers 1 --worker-mode threads)
else()
  list(APPEND golden --workers 2)
endif()
add_test(NAME exactness.golden COMMAND ${golden})
set_tests_properties(exactness.golden PROPERTIES LABELS golden TIMEOUT 1500 COST 100
  ENVIRONMENT "LK_EMULATOR=${CMAKE_CROSSCOMPILING_EMULATOR}")

# The same bits from the code for AMX tiles, on every processor.
if(CMAKE_BUILD_TYPE STREQUAL Release AND NOT CMAKE_CROSSCOMPILING)
  add_test(NAME exactness.tiles COMMAND ${golden} --isa amx_emulated)
  set_tests_properties(exactness.tiles PROPERTIES LABELS golden TIMEOUT 1500)
endif()

# Against PyTorch, transformers and torchvision, where some python3 has them; once is enough.
if(CMAKE_BUILD_TYPE STREQUAL Release AND NOT CMAKE_CROSSCOMPILING AND CMAKE_C_COMPILER_ID STREQUAL GNU)
  add_executable(parity_logits tests/parity/logits.c)
  set_target_properties(parity_logits PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_include_directories(parity_logits PRIVATE src)
  target_link_libraries(parity_logits PRIVATE lockstep lk_warnings lk_dependencies)
  lk_test_programs(parity lockstep_command parity_logits)
  add_test(NAME parity.pytorch
    COMMAND ${PROJECT_SOURCE_DIR}/tests/parity/run parity.py $<TARGET_FILE:lockstep_command> numpy torch)
  add_test(NAME parity.losses
    COMMAND ${PROJECT_SOURCE_DIR}/tests/parity/run losses.py $<TARGET_FILE:lockstep_command> numpy torch)
  add_test(NAME parity.hugging_face
    COMMAND ${PROJECT_SOURCE_DIR}/tests/parity/run hugging_face.py $<TARGET_FILE:lockstep_command>
            numpy torch transformers)
  add_test(NAME parity.adapters
    COMMAND ${PROJECT_SOURCE_DIR}/tests/parity/run adapters.py $<TARGET_FILE:lockstep_command>
            numpy torch transformers peft)
  add_test(NAME parity.torchvision
    COMMAND ${PROJECT_SOURCE_DIR}/tests/parity/run torchvision_resnet.py $<TARGET_FILE:lockstep_command>
            numpy torch torchvision)
  set_tests_properties(parity.pytorch parity.losses parity.hugging_face parity.adapters
    parity.torchvision
    PROPERTIES LABELS parity SKIP_RETURN_CODE 77 TIMEOUT 1500)
endif()

# The Python package, on the shared library and the command of this build; once is enough.
if(LK_SHARED AND CMAKE_BUILD_TYPE STREQUAL Release AND NOT LK_SANITIZE AND NOT CMAKE_CROSSCOMPILING AND
   CMAKE_C_COMPILER_ID STREQUAL GNU)
  lk_test_programs(python lockstep_command lockstep_shared)
  file(GLOB python_tests CONFIGURE_DEPENDS python/tests/*_test.py)
  foreach(path IN LISTS python_tests)
    get_filename_component(name ${path} NAME_WE)
    string(REGEX REPLACE "_test$" "" name ${name})
    add_test(NAME python.${name} COMMAND ${PROJECT_SOURCE_DIR}/python/tests/run ${path})
    set_tests_properties(python.${name} PROPERTIES LABELS python SKIP_RETURN_CODE 77 TIMEOUT 1500 COST 100
      ENVIRONMENT "LOCKSTEP_BUILD=${CMAKE_BINARY_DIR};XDG_CACHE_HOME=${CMAKE_BINARY_DIR}/cache")
  endforeach()
endif()
