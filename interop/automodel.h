/* automodel.h - NeMo Automodel v0.4.0: its recipes in YAML. */
#pragma once
#include "interop/target.h"

extern const struct weft_target weft_automodel;
