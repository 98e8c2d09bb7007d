# Runs PROGRAM without a launcher, and as groups of each size of RANKS on one host and on two
# emulated ones.  All must print the same weights.
#     cmake -DCOMMAND=lockstep -DPROGRAM=pipeline -DRANKS=2,4,6 -P same_weights.cmake
string(REPLACE "," ";" RANKS "${RANKS}")

function(weights_of out)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE printed RESULT_VARIABLE result)
  string(REGEX MATCH "weights [0-9a-f]+" weights "${printed}")
  if(NOT result EQUAL 0 OR weights STREQUAL "")
    message(FATAL_ERROR "${ARGN}: exit status ${result}, printed ${printed}")
  endif()
  set(${out} "${weights}" PARENT_SCOPE)
endfunction()

weights_of(alone ${PROGRAM})
foreach(ranks IN LISTS RANKS)
  foreach(hosts 1 2)
    weights_of(together ${COMMAND} run -n ${ranks} --hosts ${hosts} --no-prefix ${PROGRAM})
    if(NOT together STREQUAL alone)
      message(SEND_ERROR "${ranks} ranks on ${hosts} hosts: ${together}; alone: ${alone}")
    endif()
  endforeach()
endforeach()
