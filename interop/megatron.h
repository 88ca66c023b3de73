/* megatron.h - command lines of Megatron-LM. */
#pragma once
#include "interop/target.h"

extern const struct weft_target weft_megatron_lm;
