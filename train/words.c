/* The words of state.h in a file of their own: the manifest parser needs them without the state. */
#include "train/state.h"

const char *const weft_state_kind_words[] = { WEFT_STATE_KIND_LIST (WEFT_WORD_TEXT) NULL };
