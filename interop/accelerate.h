/* accelerate.h - Hugging Face accelerate v1.12.0: its configuration in YAML. */
#pragma once
#include "interop/target.h"

extern const struct weft_target weft_accelerate;
