#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <tuple>

#include "levada/exchange/exchange.h"
#include "python/src/base/bytes.h"
#include "python/src/bindings.h"
#include "python/src/exchange/samples.h"
#include "python/src/job/launch.h"
#include "python/src/job/waiting.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

constexpr std::uint64_t no_bound = UINT64_MAX;

double seconds(Duration time) {
  return std::chrono::duration<double>(time).count();
}

Duration duration(double count) {
  if (!(count > 0)) throw InvalidArgument(fmt::format("timeout must be positive, got {}", count));
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::min(count, 1e9)));
}

nb::bytes bytes_of(const Bytes& bytes) {
  return nb::bytes(static_cast<const void*>(bytes.data()), bytes.size());
}

/// A store, and what its tensors come out as.
struct Shelf {
  Shelf(std::uint64_t max_bytes, const std::string& tensors, const std::optional<std::string>& name)
      : store({.max_bytes = max_bytes, .name = name ? *name : fmt::format("store {}", ++made)}),
        kind(kind_of_tensors(tensors)) {}
  inline static std::atomic<std::uint64_t> made = 0;  ///< without a name, in this process
  SampleStore store;
  TensorKind kind;
};

/// What `work` does with a batch, without the GIL; no other thread can change the batch meanwhile.
template <typename Work>
void with_batch(Samples& samples, Work work) {
  struct Reader {
    explicit Reader(Samples& read) : samples(read) { ++samples.readers; }
    ~Reader() { --samples.readers; }
    Samples& samples;
  } const reader(samples);
  const nb::gil_scoped_release released;
  work(samples.batch);
}

using Keys = std::optional<std::vector<std::string>>;

Samples get(const Shelf& shelf, const std::vector<std::string>& ids, const Keys& keys, bool allow_absent) {
  return {shelf.store.get(ids, keys.value_or(std::vector<std::string>()), allow_absent), shelf.kind};
}

void bind_store(nb::module_& module) {
  const auto released = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<Shelf>(
      module, "Store",
      "The samples that this rank has, by id, in memory of their own. Any thread. Raises InvalidArgument, "
      "naming id and key.")
      .def(nb::init<std::uint64_t, const std::string&, const std::optional<std::string>&>(), nb::kw_only(),
           nb::arg("max_bytes") = no_bound, nb::arg("tensors") = "numpy", nb::arg("name") = nb::none(),
           "max_bytes: of tensors; what would go beyond is refused, and nothing of that call is stored. tensors: what "
           "get() gives, arrays of \"numpy\" or tensors of \"torch\". name: ranks exchange between stores of the same "
           "name "
           "alone; by default \"store 1\", \"store 2\", ... in the order in which this process makes them.")
      .def_prop_ro(
          "name", [](const Shelf& shelf) { return shelf.store.name(); }, "As it was given, or made up.")
      .def(
          "store",
          [](Shelf& shelf, Samples& samples, bool copy) {
            with_batch(samples, [&](const SampleBatch& batch) {
              copy ? shelf.store.store(batch) : shelf.store.store_without_copy(batch);
            });
          },
          nb::arg("samples"), nb::kw_only(), nb::arg("copy") = true,
          "New samples. copy=False: the batch's own memory is held, and must not be written while it is. Raises "
          "InvalidArgument for an id that is here already, for a meta, and beyond the bound; nothing is stored then.")
      .def(
          "update",
          [](Shelf& shelf, Samples& samples) {
            with_batch(samples, [&](const SampleBatch& batch) { shelf.store.update(batch); });
          },
          nb::arg("samples"),
          "Adds keys and values to samples that are here, replacing what they have. Raises InvalidArgument for an id "
          "that is not here, for a meta, and beyond the bound; nothing has changed then.")
      .def(
          "get", &get, nb::arg("ids"), nb::arg("keys") = nb::none(), nb::kw_only(), nb::arg("allow_absent") = false,
          released,
          "These samples, in this order, with these keys (all where None); a key that a sample lacks is absent for it. "
          "The tensors share the store's memory, stay as they are when it changes, and must not be written. Raises "
          "InvalidArgument for an id that is not here, and for a key that none of them has: with allow_absent that is "
          "absent for all, as on the other ranks of an exchange that allows it.")
      .def(
          "has",
          [](const Shelf& shelf, const std::string& id, const std::optional<std::string>& key) {
            return key ? shelf.store.has(id, *key) : shelf.store.has(id);
          },
          nb::arg("id"), nb::arg("key") = nb::none(), released, "Whether a sample, or a key of it, is here.")
      .def(
          "remove", [](Shelf& shelf, const std::vector<std::string>& ids) { shelf.store.remove(ids); }, nb::arg("ids"),
          released, "Ids that are not here are ignored.")
      .def(
          "clear", [](Shelf& shelf) { shelf.store.clear(); }, released,
          "Removes all, and gives memory kept for later samples back to the system.")
      .def(
          "__len__", [](const Shelf& shelf) { return shelf.store.size(); }, released)
      .def_prop_ro(
          "nbytes", [](const Shelf& shelf) { return shelf.store.bytes(); }, released, "Bytes of all tensors.")
      .def_prop_ro(
          "ids", [](const Shelf& shelf) { return shelf.store.ids(); }, released, "Ascending.")
      .def(
          "directory",
          [](const Shelf& shelf, int rank, const std::optional<std::vector<std::string>>& ids, const Keys& keys) {
            if (!ids && !keys) return shelf.store.directory(rank);
            return shelf.store.directory(rank, ids.value_or(shelf.store.ids()),
                                         keys.value_or(std::vector<std::string>()));
          },
          nb::arg("rank"), nb::arg("ids") = nb::none(), nb::arg("keys") = nb::none(), released,
          "What `rank`, which has this store, tells others: all samples, or these ids (those here) and keys.");
}

std::vector<int> holders(const SampleDirectory& directory, const std::string& id, const std::string& key) {
  const auto sample = directory.find(id);
  const auto number = directory.find_key(key);
  std::vector<int> ranks;
  if (!sample || !number) return ranks;
  for (const Holder& holder : directory.holders(*sample, *number)) ranks.push_back(holder.rank);
  return ranks;
}

void bind_directory(nb::module_& module) {
  nb::class_<SampleDirectory> type(
      module, "SampleDirectory",
      "Who holds which key of which sample, and how long it is there: all that planning needs to "
      "know. No payload goes into it. Kept up to date by one controller, or made by all_gather().");
  type.def(nb::init<>(), "Nobody holds anything.")
      .def(
          "add",
          [](SampleDirectory& directory, int rank, const Samples& samples) { directory.add(rank, samples.batch); },
          nb::arg("rank"), nb::arg("samples"),
          "`rank` now holds all that a batch, or its meta, has. Raises InvalidArgument, naming id, key and ranks, "
          "where "
          "dtype, trailing shape, lengths or values are not those that other ranks hold; nothing has changed then.")
      .def(
          "remove",
          [](SampleDirectory& directory, int rank, const std::vector<std::string>& ids) {
            directory.remove(rank, ids);
          },
          nb::arg("rank"), nb::arg("ids"), "`rank` no longer holds them. Unknown ids are ignored.")
      .def("clear", &SampleDirectory::clear, nb::arg("rank"), "`rank` no longer holds anything.")
      .def("merge", &SampleDirectory::merge, nb::arg("other"),
           "Adds everything that another knows. Raises as add() does.")
      .def("holders", &holders, nb::arg("id"), nb::arg("key"), "The ranks that hold a key of a sample, ascending.")
      .def(
          "meta", [](const SampleDirectory& directory) { return Samples{directory.meta()}; },
          "All that is held anywhere, without data.")
      .def("__len__", &SampleDirectory::size)
      .def(
          "__contains__",
          [](const SampleDirectory& directory, const std::string& id) { return directory.contains(id); }, nb::arg("id"),
          "Whether anybody holds the sample.");
  type.def(
          "encode", [](const SampleDirectory& directory) { return bytes_of(directory.encode()); },
          "Bytes that travel; pickling makes the same.")
      .def_static(
          "decode", [](const nb::bytes& bytes) { return SampleDirectory::decode(view_of(bytes)); }, nb::arg("bytes"),
          "What encode() wrote. Raises CorruptMessage for other bytes.")
      .def("__getstate__", [](const SampleDirectory& directory) { return bytes_of(directory.encode()); })
      .def("__setstate__", [](SampleDirectory& directory, const nb::bytes& bytes) {
        new (&directory) SampleDirectory(SampleDirectory::decode(view_of(bytes)));
      });
}

/// One multicast of a plan.
struct PlannedMulticast {
  int source = 0;
  std::vector<int> to;
  std::vector<std::pair<std::string, std::string>> items;
  std::uint64_t bytes = 0;
};

PlannedMulticast multicast_at(const ExchangePlan& plan, std::size_t number) {
  if (number >= plan.size()) throw nb::index_error(fmt::format("the plan has {} multicasts", plan.size()).c_str());
  const Multicast multicast = plan[number];
  PlannedMulticast told{multicast.from, {multicast.to.begin(), multicast.to.end()}, {}, multicast.bytes};
  for (const ExchangeItem& item : multicast.items) {
    for_each_key(item.keys, [&](std::size_t k) {
      told.items.emplace_back(plan.samples().id(item.sample), plan.samples().keys()[plan.keys()[k]].name);
    });
  }
  return told;
}

void bind_destination(nb::module_& module) {
  nb::class_<Destination>(module, "Destination", "Ranks that are to have samples, all of them all.")
      .def(
          "__init__",
          [](Destination* self, std::vector<int> ranks, std::vector<std::string> ids, std::uint16_t part,
             std::uint16_t parts, bool zigzag) {
            new (self) Destination{std::move(ranks), std::move(ids), {part, parts, zigzag}};
          },
          nb::arg("ranks"), nb::arg("ids"), nb::kw_only(), nb::arg("part") = 0, nb::arg("parts") = 1,
          nb::arg("zigzag") = false,
          "part, parts, zigzag: of the keys that are cut, which part of each sequence; the others come whole. A zigzag "
          "part is chunks part and 2*parts-1-part of 2*parts.")
      .def_ro("ranks", &Destination::ranks)
      .def_ro("ids", &Destination::ids)
      .def_prop_ro("part", [](const Destination& to) { return to.part.index; })
      .def_prop_ro("parts", [](const Destination& to) { return to.part.count; })
      .def_prop_ro("zigzag", [](const Destination& to) { return to.part.zigzag; })
      .def("__repr__", [](const Destination& to) {
        return fmt::format("<Destination: ranks {}, {} samples, {}>", fmt::join(to.ranks, ", "), to.ids.size(),
                           to.part.to_string());
      });
}

void bind_multicast(nb::module_& module) {
  nb::class_<PlannedMulticast>(module, "Multicast", "What one rank sends to a set of ranks.")
      .def_ro("source", &PlannedMulticast::source, "The rank that sends.")
      .def_ro("to", &PlannedMulticast::to, "The ranks that receive, ascending.")
      .def_ro("items", &PlannedMulticast::items, "(id, key), ascending.")
      .def_ro("bytes", &PlannedMulticast::bytes);
}

void bind_plan(nb::module_& module) {
  nb::class_<ExchangePlan> type(module, "ExchangePlan",
                                "What has to move: at most one multicast a sender and set of receivers. A value; print "
                                "it for a table.");
  type.def("__len__", &ExchangePlan::size)
      .def("__getitem__", &multicast_at, nb::arg("number"), "A multicast, ordered by sender, then by receivers.")
      .def_prop_ro("moved_bytes", &ExchangePlan::moved_bytes,
                   "Bytes that leave their senders, each multicast counted once.")
      .def_prop_ro("lower_bound_bytes", &ExchangePlan::lower_bound_bytes,
                   "The least that can move, nothing to a host that has it.")
      .def_prop_ro("delivered_bytes", &ExchangePlan::delivered_bytes, "Bytes that arrive, counted at each rank.")
      .def_prop_ro(
          "busiest", [](const ExchangePlan& plan) { return std::pair(plan.busiest().rank, plan.busiest().bytes); },
          "(rank, bytes) of the rank that sends most; rank -1 where nothing moves.")
      .def_prop_ro(
          "edges",
          [](const ExchangePlan& plan) {
            std::vector<std::tuple<int, int, std::uint64_t>> edges;
            for (const auto& edge : plan.edges()) edges.emplace_back(edge.from, edge.to, edge.bytes);
            return edges;
          },
          "(from, to, bytes) of each pair of ranks, ascending.")
      .def_prop_ro("ranks", &ExchangePlan::ranks, "Ranks that send or receive, ascending.")
      .def("to_table", &ExchangePlan::to_table, "For people: one row a multicast, then the sums.")
      .def("to_json", &ExchangePlan::to_json, nb::arg("with_ids") = false,
           "One JSON object: multicasts, moved_bytes, lower_bound_bytes, delivered_bytes, busiest, edges.")
      .def("__str__", &ExchangePlan::to_table)
      .def(
          "__eq__",
          [](const ExchangePlan& plan, nb::handle other) {
            return nb::isinstance<ExchangePlan>(other) && plan == nb::cast<const ExchangePlan&>(other);
          },
          nb::sig("def __eq__(self, other: object, /) -> bool"), "Whether the same moves in the same way.")
      .def("__repr__", [](const ExchangePlan& plan) {
        return fmt::format("<ExchangePlan: {} multicasts, {} bytes>", plan.size(), plan.moved_bytes());
      });
}

void bind_result(nb::module_& module) {
  nb::class_<ExchangeResult>(module, "ExchangeResult", "What one exchange did.")
      .def_ro("multicasts", &ExchangeResult::multicasts, "In all. At most one a sender and set of receivers.")
      .def_ro("moved_bytes", &ExchangeResult::moved_bytes,
              "That left their senders in all, each multicast counted once.")
      .def_ro("lower_bound_bytes", &ExchangeResult::lower_bound_bytes,
              "The least that can move, nothing to a host that has it.")
      .def_ro("delivered_bytes", &ExchangeResult::delivered_bytes, "That arrived in all, counted at each rank.")
      .def_ro("sent_bytes", &ExchangeResult::sent_bytes, "By this rank, each message counted once.")
      .def_ro("sent_messages", &ExchangeResult::sent_messages)
      .def_ro("received_bytes", &ExchangeResult::received_bytes, "By this rank, of those for it.")
      .def_ro("agreed_bytes", &ExchangeResult::agreed_bytes, "That this rank told rank 0 before anything moved.")
      .def_prop_ro("agree_seconds", [](const ExchangeResult& result) { return seconds(result.agree_time); })
      .def_prop_ro(
          "plan_seconds", [](const ExchangeResult& result) { return seconds(result.plan_time); },
          "On rank 0, which plans for all; else 0.")
      .def_prop_ro("move_seconds", [](const ExchangeResult& result) { return seconds(result.move_time); });
}

ExchangeResult redistribute(Membership& job, Shelf& shelf, const ExchangeRequest& request,
                            std::optional<std::uint64_t> chunk_bytes, std::uint64_t in_flight_bytes, double timeout) {
  ExchangeOptions options{.timeout = duration(timeout), .chunk_bytes = chunk_bytes, .in_flight_bytes = in_flight_bytes};
  const auto exchange = job.exchange();
  return interruptible_on(job, "an exchange", [&](const auto&, const auto& poll) {
    options.poll = poll;
    return exchange->redistribute(shelf.store, request, options);
  });
}

SampleDirectory all_gather(Membership& job, const Shelf& shelf, double timeout) {
  ExchangeOptions options{.timeout = duration(timeout)};
  const auto exchange = job.exchange();
  return interruptible_on(job, "an exchange", [&](const auto&, const auto& poll) {
    options.poll = poll;
    return exchange->all_gather(shelf.store, options);
  });
}

ModelRanks model_of(const Mesh& mesh, const std::optional<std::vector<int>>& ranks) {
  return ranks ? ModelRanks{mesh, *ranks} : ModelRanks::from(mesh);
}

void bind_functions(nb::module_& module) {
  nb::class_<ExchangeRequest>(module, "ExchangeRequest", "What is asked of an exchange.")
      .def(
          "__init__",
          [](ExchangeRequest* self, std::vector<Destination> destinations, std::vector<std::string> keys,
             std::vector<std::string> cut_keys, bool allow_absent) {
            new (self) ExchangeRequest{std::move(destinations), std::move(keys), std::move(cut_keys), allow_absent};
          },
          nb::arg("destinations"), nb::arg("keys"), nb::arg("cut_keys"), nb::arg("allow_absent"));
  module.def(
      "plan_exchange",
      // A copy, which other threads cannot change, and which shares its memory.
      [](SampleDirectory directory, const ExchangeRequest& request, const std::vector<int>& host_of) {
        const nb::gil_scoped_release released;
        return plan_exchange(directory, request, host_of);
      },
      nb::arg("directory"), nb::arg("request"), nb::arg("host_of"));
  module.def("redistribute", &redistribute, nb::arg("job"), nb::arg("store"), nb::arg("request"),
             nb::arg("chunk_bytes").none(), nb::arg("in_flight_bytes"), nb::arg("timeout"));
  module.def("all_gather", &all_gather, nb::arg("job"), nb::arg("store"), nb::arg("timeout"));
  module.def(
      "destinations_of",
      [](const Mesh& mesh, std::vector<std::vector<std::string>> ids, const std::optional<std::vector<int>>& ranks,
         const std::string& cut) {
        return destinations_of(model_of(mesh, ranks), std::move(ids), sequence_placement(cut));
      },
      nb::arg("mesh"), nb::arg("ids"), nb::arg("ranks").none(), nb::arg("cut"));
  module.def(
      "data_heads",
      [](const Mesh& mesh, const std::optional<std::vector<int>>& ranks) { return data_heads(model_of(mesh, ranks)); },
      nb::arg("mesh"), nb::arg("ranks").none());
  module.def(
      "partition_by_tokens",
      [](const std::vector<std::int64_t>& tokens, std::size_t parts, bool equal, bool in_order) {
        if (in_order) return partition_in_order(tokens, parts);
        return partition_by_cost(tokens, parts, equal ? PartSizes::equal : PartSizes::any);
      },
      nb::arg("tokens"), nb::arg("parts"), nb::arg("equal"), nb::arg("in_order"));
}

}  // namespace

void bind_exchange(nb::module_& module) {
  bind_store(module);
  bind_directory(module);
  bind_destination(module);
  bind_multicast(module);
  bind_plan(module);
  bind_result(module);
  bind_functions(module);
}

}  // namespace levada::python
