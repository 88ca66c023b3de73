/* deepspeed.h - DeepSpeed v0.18.3: its configuration in JSON. */
#pragma once
#include "interop/target.h"

extern const struct weft_target weft_deepspeed;
