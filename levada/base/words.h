// The words by which people name the members of an enum.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace levada {

template <typename E>
struct Word {
  std::string_view text;
  E value;
};

/// Throws InvalidArgument: "`what` is `text`; it must be a, b or c".
[[noreturn]] void refuse_word(std::string_view what, std::string_view text, std::span<const std::string_view> words);

/// What `text` names. Throws InvalidArgument for none of the words, naming `what` and all of them.
template <typename E, std::size_t N>
E parse_word(std::string_view what, std::string_view text, const Word<E> (&words)[N]) {
  std::vector<std::string_view> known;
  for (const Word<E>& word : words) {
    if (word.text == text) return word.value;
    known.push_back(word.text);
  }
  refuse_word(what, text, known);
}

/// The word for `value`; "unknown" where there is none.
template <typename E, std::size_t N>
std::string_view word_for(E value, const Word<E> (&words)[N]) {
  for (const Word<E>& word : words) {
    if (word.value == value) return word.text;
  }
  return "unknown";
}

}  // namespace levada
