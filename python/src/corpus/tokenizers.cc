#include "python/src/corpus/tokenizers.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/base/text.h"
#include "python/src/base/callables.h"
#include "python/src/bindings.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

class PythonTokenizer final : public Tokenizer {
 public:
  PythonTokenizer(std::string name, std::string digest, std::int64_t vocabulary_size,
                  std::optional<std::int64_t> end_of_document, nb::object id_of, nb::object encode, bool is_chat,
                  std::string unknown_end)
      : name_(std::move(name)),
        digest_(std::move(digest)),
        vocabulary_size_(vocabulary_size),
        end_of_document_(end_of_document),
        id_of_(share(std::move(id_of))),
        encode_(share(std::move(encode))),
        is_chat_(is_chat),
        unknown_end_(std::move(unknown_end)) {}

  const std::string& name() const override { return name_; }
  const std::string& digest() const override { return digest_; }
  std::int64_t vocabulary_size() const override { return vocabulary_size_; }
  std::optional<std::int64_t> end_of_document() const override {
    if (unknown_end_.empty()) return end_of_document_;
    throw InvalidArgument(
        fmt::format("{} ends documents with the token {}, which is not in its vocabulary: name another (--eod TOKEN, "
                    "eod=\"TOKEN\")",
                    printable(name_), printable(unknown_end_)));
  }

  bool is_chat() const override { return is_chat_; }

  std::optional<std::int64_t> id_of(std::string_view token) const override {
    const nb::gil_scoped_acquire gil;
    // A name from the command line may not be valid UTF-8; it is then not a token.
    const auto text = nb::steal(PyUnicode_DecodeUTF8(token.data(), static_cast<Py_ssize_t>(token.size()), "replace"));
    return nb::cast<std::optional<std::int64_t>>((*id_of_)(text));
  }

  void encode(const Texts& texts, TokenIds& tokens) const override {
    const nb::gil_scoped_acquire gil;
    tokens.clear();
    try {
      nb::list given;
      for (std::size_t i = 0; i < texts.size(); ++i) given.append(nb::str(texts[i].data(), texts[i].size()));
      const nb::object all = (*encode_)(given);
      for (const nb::handle ids : all) append(ids, tokens);
    } catch (const nb::python_error& error) {
      rethrow(error);
      throw SourceError(fmt::format("{} cannot encode a text: {}", printable(name_), describe(error)));
    } catch (const nb::cast_error&) {
      throw SourceError(fmt::format("{} did not encode a text as a list of numbers", printable(name_)));
    }
  }

 private:
  void append(nb::handle ids, TokenIds& tokens) const {
    for (const nb::handle id : nb::cast<nb::list>(ids)) {
      const long value = PyLong_AsLong(id.ptr());
      if (value == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
      const long token = is_chat_ && value < 0 ? ~value : value;
      if (token < 0 || token >= vocabulary_size_) {
        throw SourceError(fmt::format("{} encoded a text as token {}, but has only {} tokens", printable(name_), token,
                                      vocabulary_size_));
      }
      tokens.ids.push_back(static_cast<std::int32_t>(value));
    }
    tokens.ends.push_back(tokens.ids.size());
  }

  std::string name_, digest_;
  std::int64_t vocabulary_size_;
  std::optional<std::int64_t> end_of_document_;
  SharedObject id_of_, encode_;
  bool is_chat_;
  std::string unknown_end_;
};

/// nanobind cannot hold pointers to const.
struct SharedTokenizer {
  std::shared_ptr<const Tokenizer> tokenizer;
};

}  // namespace

std::shared_ptr<const Tokenizer> tokenizer_of(nb::handle given) {
  if (given.is_none()) return nullptr;
  return nb::cast<const SharedTokenizer&>(given).tokenizer;
}

void bind_tokenizers(nb::module_& module) {
  nb::class_<SharedTokenizer>(module, "Tokenizer", "Encodes text as tokens.")
      .def(
          "__init__",
          [](SharedTokenizer* self, std::string name, std::string digest, std::int64_t vocabulary_size,
             std::optional<std::int64_t> end_of_document, nb::object id_of, nb::object encode, bool is_chat,
             std::string unknown_end) {
            new (self) SharedTokenizer{std::make_shared<PythonTokenizer>(
                std::move(name), std::move(digest), vocabulary_size, end_of_document, std::move(id_of),
                std::move(encode), is_chat, std::move(unknown_end))};
          },
          nb::arg("name"), nb::arg("digest"), nb::arg("vocabulary_size"), nb::arg("end_of_document").none(),
          nb::arg("id_of"), nb::arg("encode"), nb::arg("is_chat") = false, nb::arg("unknown_end") = "",
          nb::sig("def __init__(self, name: str, digest: str, vocabulary_size: int, end_of_document: int | None, "
                  "id_of: collections.abc.Callable[[str], int | None], "
                  "encode: collections.abc.Callable[[list[str]], list[list[int]]], is_chat: bool = False, "
                  "unknown_end: str = '') -> None"),
          "encode: encodes texts. For chats, a text is a JSON list of messages, and an id below zero is ~id of a token "
          "without loss. unknown_end: the token that should end documents, but is not in the vocabulary.")
      .def_prop_ro("name", [](const SharedTokenizer& self) { return self.tokenizer->name(); })
      .def_prop_ro("vocabulary_size", [](const SharedTokenizer& self) { return self.tokenizer->vocabulary_size(); })
      .def(
          "choose_end_of_document",
          [](const SharedTokenizer& self, const std::string& token) {
            return choose_end_of_document(*self.tokenizer, token);
          },
          nb::arg("token") = "", "Returns the id of the token that ends documents. Raises InvalidArgument.");
  module.def(
      "digest",
      [](const nb::bytes& bytes) {
        Digest digest;
        digest.update(std::string_view(bytes.c_str(), bytes.size()));
        return digest.hex();
      },
      nb::arg("bytes"), "Returns the XXH3-128 of the bytes as 32 hexadecimal digits.");
  module.def(
      "byte_tokenizer", [] { return SharedTokenizer{byte_tokenizer()}; },
      "Returns a tokenizer for which each byte of UTF-8 is a token.");
}

}  // namespace levada::python
