# SPDX-License-Identifier: MIT
# Runs PROGRAM in the current directory; its output must be the text of the file EXPECTED, to the byte.
execute_process(COMMAND "${PROGRAM}" RESULT_VARIABLE status OUTPUT_VARIABLE output)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${PROGRAM}: ${status}\n${output}")
endif()
file(READ "${EXPECTED}" expected)
if(NOT output STREQUAL expected)
  cmake_path(GET PROGRAM FILENAME name)
  file(WRITE "${name}.actual.txt" "${output}")
  execute_process(COMMAND diff -u "${EXPECTED}" "${name}.actual.txt")
  message(FATAL_ERROR "the output of ${name} differs from ${EXPECTED}")
endif()
