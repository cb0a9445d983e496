// SPDX-License-Identifier: MIT
#pragma once

// The one place where the version is written; CMake reads it from here.
#define HEADWAVE_VERSION_MAJOR 0
#define HEADWAVE_VERSION_MINOR 1
#define HEADWAVE_VERSION_PATCH 0

/// The version as one number, 10000 * major + 100 * minor + patch, for comparisons in the preprocessor.
#define HEADWAVE_VERSION (HEADWAVE_VERSION_MAJOR * 10000 + HEADWAVE_VERSION_MINOR * 100 + HEADWAVE_VERSION_PATCH)
