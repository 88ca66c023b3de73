/* hugging_face.h - config.json of a Hugging Face model: the model of a job, nothing else. */
#pragma once
#include "interop/target.h"

extern const struct weft_target weft_hugging_face;
