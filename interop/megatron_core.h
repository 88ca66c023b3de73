/* megatron_core.h - configuration classes of Megatron-Core core_v0.13.0, as JSON. */
#pragma once
#include "interop/target.h"

extern const struct weft_target weft_megatron_core;
