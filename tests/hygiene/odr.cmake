# SPDX-License-Identifier: MIT
# Compiles static_isa.cpp as a file of each kind, with other flags for each, and links them with link-time optimisation.
file(MAKE_DIRECTORY "${BINARY_DIR}")
set(all -O1 -flto -DHEADWAVE_STATIC_ISA)
set(scalar -O2 -flto -DHEADWAVE_STATIC_ISA -DSTATIC_ISA_SCALAR -DNDEBUG -fno-exceptions)
set(avx2 -O1 -flto -DHEADWAVE_STATIC_ISA -DSTATIC_ISA_AVX2 -mavx2 -mfma -mf16c -ffast-math)
set(objects)
foreach(kind all scalar avx2)
  set(object "${BINARY_DIR}/${kind}.o")
  execute_process(COMMAND ${COMPILE} ${${kind}} -c "${SOURCE}" -o "${object}" COMMAND_ERROR_IS_FATAL ANY)
  list(APPEND objects "${object}")
endforeach()
execute_process(COMMAND ${COMPILE} -O1 -flto -Werror=odr -Werror=lto-type-mismatch ${objects} -o "${BINARY_DIR}/program"
                COMMAND_ERROR_IS_FATAL ANY)
