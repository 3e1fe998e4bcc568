#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "levada/base/bytes.h"
#include "levada/corpus/cursor.h"
#include "levada/feed/step_cursor.h"
#include "levada/tree/codec.h"
#include "python/src/base/bytes.h"
#include "python/src/base/errors.h"
#include "python/src/base/escaped_text.h"
#include "python/src/batch/trees.h"
#include "python/src/bindings.h"
#include "python/src/feed/handoff.h"
#include "python/src/feed/item_digest.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

constexpr std::size_t max_message_bytes = std::size_t{64} << 10;

/// A Handoff whose items Python makes.
struct PythonHandoff final : Handoff {
  using Handoff::Handoff;
  BatchClasses classes;
};

/// A message, the reason if there is none, and the number of items since.
using GivenState = std::optional<std::tuple<nb::bytes, EscapedText, std::int64_t>>;

nb::bytes pack_state(nb::handle state, bool allow_pickle) {
  return to_bytes(encode_tree(to_tree(state, allowed_in_states(allow_pickle), "state")));
}

/// Also returns the number of items since that state.
std::pair<std::optional<LoaderState>, std::int64_t> state_of(const GivenState& given) {
  if (!given) return {std::nullopt, 0};
  const auto& [bytes, failure, since] = *given;
  const auto message = view_of(bytes);
  return {LoaderState{{message.begin(), message.end()}, failure.utf8}, since};
}

std::uint64_t digest_of(nb::handle item, bool allow_pickle) {
  return item_digest(flatten(to_tree(item, allowed_in_batches(allow_pickle), "item")));
}

void prepare(PythonHandoff& handoff, nb::handle batch, const GivenState& given, std::optional<std::uint64_t> digest,
             bool allow_pickle) {
  auto lent =
      lend(batch, allowed_in_batches(allow_pickle), handoff.classes, handoff.batch_memory().get(), handoff.spent());
  auto [state, since] = state_of(given);
  const auto mark = digest ? *digest : item_digest(flatten(lent.tree));
  handoff.prepare({std::move(lent.tree), std::move(lent.place), std::move(state), since, mark});
}

using Size = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

void report_sizes(PythonHandoff& handoff, const std::vector<Size>& all, const GivenState& given, std::uint64_t digest) {
  std::vector<SampleSize> sizes;
  for (const auto& [tokens, squares, first, second, padding] : all) {
    sizes.push_back({tokens, squares, {first, second}, padding});
  }
  auto [state, since] = state_of(given);
  const nb::gil_scoped_release released;
  handoff.report_sizes(std::move(sizes), std::move(state), since, digest);
}

std::optional<std::tuple<std::int64_t, std::int64_t, std::vector<std::int64_t>, bool>> wanted(PythonHandoff& handoff) {
  std::optional<Handoff::HandoffRequest> wanted;
  {
    const nb::gil_scoped_release released;
    wanted = handoff.wanted();
  }
  handoff.spent()->clear();
  if (!wanted) return std::nullopt;
  return std::tuple(wanted->skipped, wanted->taken, std::move(wanted->gathered), wanted->repeats);
}

/// Keeps the end of a long text, since the end of a traceback matters most.
void fail(PythonHandoff& handoff, EscapedText given, bool is_argument) {
  auto text = std::move(given.utf8);
  if (text.size() > max_message_bytes) text = "..." + text.substr(text.size() - max_message_bytes);
  handoff.fail(is_argument ? ErrorKind::invalid_argument : ErrorKind::source, std::move(text));
}

nb::object unpack_state(const nb::bytes& message) {
  return from_message(view_of(message), Allowed::registered);
}

std::tuple<std::int64_t, std::int64_t, nb::object> read_cursor(const nb::bytes& bytes, bool allow_pickle) {
  const auto cursor = IterableCursor::decode(view_of(bytes));
  if (!cursor.state || !cursor.state->failure.empty()) throw InvalidArgument("a state of a feed without its loader's");
  return {cursor.next, cursor.position, from_message(cursor.state->message, allowed_in_states(allow_pickle))};
}

/// A placeholder for a source that this rank could not open. Every rank raises its error at the first step.
class Unopened final : public Source {
 public:
  Unopened(ErrorKind kind, std::string message) : kind_(kind), message_(std::move(message)) {}
  std::optional<std::int64_t> size() const override { return std::nullopt; }
  std::optional<Tree> read(std::int64_t, std::int64_t, Memory&) override { throw_error(kind_, message_); }
  std::vector<SampleSize> sizes(std::int64_t, std::int64_t) override { throw_error(kind_, message_); }
  bool has_random_access() const override { return true; }
  Bytes cursor(std::int64_t) const override { return {}; }
  std::string activity() const override { return "failing to open"; }
  ReadStats stats() const override { return {}; }

 private:
  ErrorKind kind_;
  std::string message_;
};

std::shared_ptr<Source> unopened(const std::string& kind, const EscapedText& message) {
  return std::make_shared<Unopened>(kind_of(kind), message.utf8);
}

}  // namespace

void bind_sources(nb::module_& module) {
  nb::class_<PythonHandoff, Source>(module, "Handoff", "Batches that one thread makes when a feed requests them.")
      .def(nb::init<std::int64_t, std::int64_t, std::string, bool, bool, bool>(), nb::arg("samples"),
           nb::arg("position"), nb::arg("activity"), nb::arg("counts_rows"), nb::arg("cuts_rows") = false,
           nb::arg("is_by_number") = false)
      .def("wanted", &wanted,
           "Blocks until something is requested. Returns the number of items to skip; the number to take then, for "
           "report_sizes(), or 0; the indexes of the last taken items to make one item of; and whether to prepare the "
           "last item again. If the latter three are empty, the next item is requested. Returns None if there are no "
           "further requests.")
      .def(
          "report_sizes", &report_sizes, nb::arg("sizes"), nb::arg("state").none(), nb::arg("digest"),
          "Reports the sizes of the taken items, of which there are fewer than requested only at the end: positions in "
          "a row, their square, two weights, and the number of positions that are padding. state: as for prepare().")
      .def("prepare", &prepare, nb::arg("batch").none(), nb::arg("state").none(), nb::arg("digest").none(),
           nb::kw_only(), nb::arg("allow_pickle") = false,
           nb::sig("def prepare(self, batch: object, state: tuple[bytes, str, int] | None, digest: int | None, *, "
                   "allow_pickle: bool = False) -> None"),
           "Sets the item that give() delivers. Its memory is used until the next wanted(). state: the loader's state "
           "as packed by pack_state(), or b\"\" and the reason why it could not be packed; and the number of items "
           "since. None if the loader has not been asked for a state since the last one. digest: represents the item "
           "in states; None means digest_of() the item. Raises TypeError for an item that cannot cross.")
      .def("report_progress", &Handoff::report_progress, nb::arg("number"), nb::arg("all"),
           "Posts that item `number` of `all` is being read again, so that no rank's wait times out.")
      .def("give", &Handoff::give, nb::call_guard<nb::gil_scoped_release>(),
           "Delivers the prepared item. Tensors from empty() without other references are sent without a copy.")
      .def("end", &Handoff::end, nb::arg("more"), nb::call_guard<nb::gil_scoped_release>(),
           "Reports the end: only `more` items follow the delivered ones.")
      .def(
          "stop", [](PythonHandoff& handoff) { handoff.stop({}); }, "Stops all requests for items.")
      .def("fail", &fail, nb::arg("text"), nb::kw_only(), nb::arg("is_argument") = false,
           "Reports that the iterator raised. is_argument: the item was an invalid argument.");
  module.def("digest_of", &digest_of, nb::arg("item").none(), nb::kw_only(), nb::arg("allow_pickle") = false,
             nb::sig("def digest_of(item: object, *, allow_pickle: bool = False) -> int"),
             "Returns an even number below 2**62 that differs between items with different values. Reads a part of "
             "long tensors. Raises TypeError for an item that cannot cross.");
  module.def("unopened", &unopened, nb::arg("kind"), nb::arg("message"));
  module.def(
      "pack_state", &pack_state, nb::arg("state").none(), nb::kw_only(), nb::arg("allow_pickle") = false,
      nb::sig("def pack_state(state: object, *, allow_pickle: bool = False) -> bytes"),
      "Returns a state as bytes: plain values, arrays, tensors and objects of registered classes. Raises TypeError, "
      "naming its place, for anything else.");
  module.def(
      "unpack_state", &unpack_state, nb::arg("state"), nb::sig("def unpack_state(state: bytes) -> typing.Any"),
      "Returns what pack_state() was given. Raises CorruptMessage for other bytes, Unsupported for a class that is "
      "not registered.");
  module.def("read_cursor", &read_cursor, nb::arg("cursor"), nb::kw_only(), nb::arg("allow_pickle") = false,
             nb::sig("def read_cursor(cursor: bytes, *, allow_pickle: bool = False) -> tuple[int, int, typing.Any]"));
  module.def(
      "corpus_position",
      [](const nb::bytes& bytes) {
        const auto cursor = StepCursor::decode(view_of(bytes));
        return std::pair(Cursor::decode(cursor.source).next, cursor.delayed.size());
      },
      nb::arg("cursor"), "Returns the next sample, and the number of earlier samples that wait for a later step.");
}

}  // namespace levada::python
