/* The words of state.h, which a manifest is read with where no state is. */
#include "train/state.h"

const char *const weft_state_kind_words[] = { WEFT_STATE_KIND_LIST (WEFT_WORD_TEXT) NULL };
