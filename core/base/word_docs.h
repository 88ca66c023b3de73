/* word_docs.h - the explanations of the words of words.h, for help pages. */
#pragma once

/* The explanation of words[i]; NULL for a list that is not one of words.h. */
const char *weft_word_doc (const char *const *words, unsigned i);
