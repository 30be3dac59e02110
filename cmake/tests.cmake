# One test executable for each room: links stay short and a crash names its room. It links the room and those below it.
find_package(GTest REQUIRED)

# What the sanitizer builds need: the command itself takes minutes to compile with them and is not run there.
add_custom_target(test_programs)
# And of those the rooms with threads of their own, for the thread sanitizer.
add_custom_target(threaded_test_programs)
set(threaded_rooms base io weights runtime export)

function(transload_test room)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${room}/*_test.cpp)
  add_executable(test_${room} ${sources})
  foreach(dependency ${ARGN})
    target_link_libraries(test_${room} PRIVATE transload_${dependency})
  endforeach()
  target_include_directories(test_${room} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(test_${room} PRIVATE TRANSLOAD_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
  target_link_libraries(test_${room} PRIVATE GTest::gmock GTest::gtest_main)
  add_dependencies(test_programs test_${room})
  add_test(NAME ${room} COMMAND test_${room})
  set_tests_properties(${room} PROPERTIES TIMEOUT 300)
  if(room IN_LIST threaded_rooms)
    add_dependencies(threaded_test_programs test_${room})
    set_tests_properties(${room} PROPERTIES LABELS threads)
  endif()
endfunction()

transload_test(base base)
transload_test(io io base)
transload_test(weights weights io base)
transload_test(model model weights io base)
transload_test(graph graph weights io base)
transload_test(decode decode graph model weights io base)
transload_test(targets onnx trtllm decode graph model weights io base)
transload_test(runtime runtime decode graph model weights io base)
transload_test(export export onnx trtllm runtime decode graph model weights io base)

# Writes the small graphs that tests/python/test_onnx_writer.py runs in ONNX Runtime.
add_executable(onnx_op_samples ${PROJECT_SOURCE_DIR}/tests/targets/onnx_op_samples.cpp)
foreach(dependency onnx graph weights io base)
  target_link_libraries(onnx_op_samples PRIVATE transload_${dependency})
endforeach()
target_include_directories(onnx_op_samples PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)

# Writes the graphs and results that tests/python/test_interpreter.py compares with ONNX Runtime.
add_executable(interpreter_samples ${PROJECT_SOURCE_DIR}/tests/runtime/interpreter_samples.cpp)
foreach(dependency onnx runtime decode graph model weights io base)
  target_link_libraries(interpreter_samples PRIVATE transload_${dependency})
endforeach()
target_include_directories(interpreter_samples PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
