/* torchtitan.h - job configurations of torchtitan, in TOML. */
#pragma once
#include "interop/target.h"

extern const struct weft_target weft_torchtitan;
