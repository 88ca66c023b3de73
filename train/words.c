/* The words of enum weft_state_kind. They have a file of their own, because the manifest parser
 * needs them without the code of the state. */
#include "train/state.h"

const char *const weft_state_kind_words[] = { WEFT_STATE_KIND_LIST (WEFT_WORD_TEXT) NULL };
