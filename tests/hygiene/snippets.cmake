# SPDX-License-Identifier: MIT
# Compiles and runs every ```cpp block of README.md and */README.md. A block without main() is the body of one.
# Needs COMPILE (the compiler and its flags), KERNELS (a library with the kernels), SOURCE_DIR, BINARY_DIR.
cmake_minimum_required(VERSION 3.21)
file(REMOVE_RECURSE "${BINARY_DIR}")
file(MAKE_DIRECTORY "${BINARY_DIR}")
file(GLOB documents RELATIVE "${SOURCE_DIR}" "${SOURCE_DIR}/README.md" "${SOURCE_DIR}/*/README.md")

set(fence "```")
set(preamble "#include <headwave/headwave.hpp>\n#include <cstdio>\n#include <vector>\nnamespace hw = headwave;\n")

function(run title)
  execute_process(
    COMMAND ${ARGN}
    WORKING_DIRECTORY "${BINARY_DIR}"
    RESULT_VARIABLE status
    OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${title}: ${status}\n${output}")
  endif()
endfunction()

set(count 0)
foreach(document IN LISTS documents)
  file(READ "${SOURCE_DIR}/${document}" rest)
  string(FIND "${rest}" "${fence}cpp\n" start)
  while(NOT start EQUAL -1)
    math(EXPR start "${start} + 7")
    string(SUBSTRING "${rest}" ${start} -1 rest)
    string(FIND "${rest}" "\n${fence}" length)
    string(SUBSTRING "${rest}" 0 ${length} code)

    if(NOT code MATCHES "int main\\(")
      string(REGEX MATCHALL "#include [^\n]+" includes "${code}")
      string(REGEX REPLACE "#include [^\n]+" "" code "${code}")
      list(JOIN includes "\n" includes)
      string(CONCAT code "${includes}\n${preamble}\nint main() {" "${code}" "\n}")
    endif()

    math(EXPR count "${count} + 1")
    set(program "${BINARY_DIR}/snippet_${count}")
    file(WRITE "${program}.cpp" "${code}\n")
    run("${document}, program ${count} does not compile" ${COMPILE} "${program}.cpp" "${KERNELS}" -o "${program}")
    run("${document}, program ${count} fails" "${program}")

    string(FIND "${rest}" "${fence}cpp\n" start)
  endwhile()
endforeach()
message(STATUS "${count} snippets compiled and run")
