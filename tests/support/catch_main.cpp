// SPDX-License-Identifier: MIT
// Catch2 2 and its main(), for where no compiled one is installed.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
