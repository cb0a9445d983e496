# SPDX-License-Identifier: MIT
# The project in ${headwave_SOURCE_DIR} must bring its two targets and nothing else.
get_property(targets DIRECTORY "${headwave_SOURCE_DIR}" PROPERTY BUILDSYSTEM_TARGETS)
get_property(subdirectories DIRECTORY "${headwave_SOURCE_DIR}" PROPERTY SUBDIRECTORIES)
if(NOT targets STREQUAL "headwave;headwave_compiled" OR subdirectories)
  message(FATAL_ERROR "unexpected targets or directories: ${targets} ${subdirectories}")
endif()
