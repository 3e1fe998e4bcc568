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

/// A store, and the kind in which its tensors are returned.
struct StoreBinding {
  StoreBinding(std::uint64_t max_bytes, const std::string& tensors, const std::optional<std::string>& name)
      : store({.max_bytes = max_bytes, .name = name ? *name : fmt::format("store {}", ++made)}),
        kind(kind_of_tensors(tensors)) {}
  inline static std::atomic<std::uint64_t> made = 0;  ///< number of unnamed stores made in this process
  SampleStore store;
  TensorKind kind;
};

/// Runs `work` on a batch without the GIL. No other thread can change the batch in that time.
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

/// Torch has no read-only tensors, so its tensors are copies: writing to them changes neither the store nor what other
/// ranks read from it.
Samples get(StoreBinding& binding, const std::vector<std::string>& ids, const Keys& keys, bool allow_absent) {
  const auto names = keys.value_or(std::vector<std::string>());
  return {is_torch(binding.kind) ? binding.store.get_copy(ids, names, allow_absent)
                                 : binding.store.get(ids, names, allow_absent),
          binding.kind};
}

void bind_store(nb::module_& module) {
  const auto released = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<StoreBinding>(
      module, "Store",
      "The samples of this rank, by id, in the store's memory. Any thread. Raises InvalidArgument, naming id and key.")
      .def(
          nb::init<std::uint64_t, const std::string&, const std::optional<std::string>&>(), nb::kw_only(),
          nb::arg("max_bytes") = no_bound, nb::arg("tensors") = "numpy", nb::arg("name") = nb::none(),
          "max_bytes: the limit on the tensors' bytes; a call that would exceed it raises and stores nothing. tensors: "
          "what get() returns, arrays of \"numpy\" or tensors of \"torch\". name: ranks exchange only between stores "
          "of the same name; by default \"store 1\", \"store 2\", ... in the order in which this process makes them.")
      .def_prop_ro(
          "name", [](const StoreBinding& binding) { return binding.store.name(); },
          "The name, as passed or by default.")
      .def(
          "store",
          [](StoreBinding& binding, Samples& samples, bool copy) {
            with_batch(samples, [&](const SampleBatch& batch) {
              copy ? binding.store.store(batch) : binding.store.store_without_copy(batch);
            });
          },
          nb::arg("samples"), nb::kw_only(), nb::arg("copy") = true,
          "Stores new samples. copy=False refers to the batch's memory, which must then stay unchanged. Raises "
          "InvalidArgument for an id that is already stored, for a meta, and beyond max_bytes; nothing is stored then.")
      .def(
          "update",
          [](StoreBinding& binding, Samples& samples) {
            with_batch(samples, [&](const SampleBatch& batch) { binding.store.update(batch); });
          },
          nb::arg("samples"),
          "Adds keys and values to stored samples, replacing existing ones. Raises InvalidArgument for an id that is "
          "not stored, for a meta, and beyond max_bytes; nothing changes then.")
      .def("get", &get, nb::arg("ids"), nb::arg("keys") = nb::none(), nb::kw_only(), nb::arg("allow_absent") = false,
           released,
           "Returns these samples, in this order, with these keys (all if None); a key that a sample lacks is absent "
           "for it. They do not change when the store changes. Torch tensors have memory of their own, which may be "
           "written; numpy arrays share the store's memory and are read-only. "
           "Raises InvalidArgument for an id that is not stored, and for a key that none of the samples has; with "
           "allow_absent such a key is absent for all, as on the other ranks of an exchange that allows it.")
      .def(
          "has",
          [](const StoreBinding& binding, const std::string& id, const std::optional<std::string>& key) {
            return key ? binding.store.has(id, *key) : binding.store.has(id);
          },
          nb::arg("id"), nb::arg("key") = nb::none(), released, "Returns whether a sample, or a key of it, is stored.")
      .def(
          "remove", [](StoreBinding& binding, const std::vector<std::string>& ids) { binding.store.remove(ids); },
          nb::arg("ids"), released, "Removes samples. Ids that are not stored are ignored.")
      .def(
          "clear", [](StoreBinding& binding) { binding.store.clear(); }, released,
          "Removes all samples, and releases cached memory to the system.")
      .def(
          "__len__", [](const StoreBinding& binding) { return binding.store.size(); }, released)
      .def_prop_ro(
          "nbytes", [](const StoreBinding& binding) { return binding.store.bytes(); }, released,
          "The bytes of all tensors.")
      .def_prop_ro(
          "ids", [](const StoreBinding& binding) { return binding.store.ids(); }, released, "The ids, ascending.")
      .def(
          "directory",
          [](const StoreBinding& binding, int rank, const std::optional<std::vector<std::string>>& ids,
             const Keys& keys) {
            if (!ids && !keys) return binding.store.directory(rank);
            return binding.store.directory(rank, ids.value_or(binding.store.ids()),
                                           keys.value_or(std::vector<std::string>()));
          },
          nb::arg("rank"), nb::arg("ids") = nb::none(), nb::arg("keys") = nb::none(), released,
          "Returns the holdings that `rank`, the store's rank, sends to others: all samples, or the stored ones of "
          "these ids, and all or these keys.");
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
      "Which ranks hold which keys of which samples, and the lengths of their sequences: all that planning needs. It "
      "holds no payload. One controller maintains it, or all_gather() makes it.");
  type.def(nb::init<>(), "Creates an empty directory.")
      .def(
          "add",
          [](SampleDirectory& directory, int rank, const Samples& samples) { directory.add(rank, samples.batch); },
          nb::arg("rank"), nb::arg("samples"),
          "Records that `rank` holds everything in a batch, or its meta. Raises InvalidArgument, naming id, key and "
          "ranks, if dtype, trailing shape, lengths or values differ from those of other ranks; nothing changes then.")
      .def(
          "remove",
          [](SampleDirectory& directory, int rank, const std::vector<std::string>& ids) {
            directory.remove(rank, ids);
          },
          nb::arg("rank"), nb::arg("ids"), "Records that `rank` no longer holds these ids. Unknown ids are ignored.")
      .def("clear", &SampleDirectory::clear, nb::arg("rank"), "Records that `rank` holds nothing.")
      .def("merge", &SampleDirectory::merge, nb::arg("other"),
           "Adds everything in another directory. Raises as add() does.")
      .def("holders", &holders, nb::arg("id"), nb::arg("key"),
           "Returns the ranks that hold a key of a sample, ascending.")
      .def(
          "meta", [](const SampleDirectory& directory) { return Samples{directory.meta()}; },
          "Returns a meta of all samples that any rank holds.")
      .def("__len__", &SampleDirectory::size)
      .def(
          "__contains__",
          [](const SampleDirectory& directory, const std::string& id) { return directory.contains(id); }, nb::arg("id"),
          "Returns whether any rank holds the sample.");
  type.def(
          "encode", [](const SampleDirectory& directory) { return to_bytes(directory.encode()); },
          "Returns bytes to send; pickling makes the same.")
      .def_static(
          "decode", [](const nb::bytes& bytes) { return SampleDirectory::decode(view_of(bytes)); }, nb::arg("bytes"),
          "Returns the directory that encode() wrote. Raises CorruptMessage for other bytes.")
      .def("__getstate__", [](const SampleDirectory& directory) { return to_bytes(directory.encode()); })
      .def("__setstate__", [](SampleDirectory& directory, const nb::bytes& bytes) {
        new (&directory) SampleDirectory(SampleDirectory::decode(view_of(bytes)));
      });
}

/// A multicast of a plan.
struct PlannedMulticast {
  int source = 0;
  std::vector<int> to;
  std::vector<std::pair<std::string, std::string>> items;
  std::uint64_t bytes = 0;
};

PlannedMulticast multicast_at(const ExchangePlan& plan, std::size_t number) {
  if (number >= plan.size()) throw nb::index_error(fmt::format("the plan has {} multicasts", plan.size()).c_str());
  const Multicast multicast = plan[number];
  PlannedMulticast planned{multicast.from, {multicast.to.begin(), multicast.to.end()}, {}, multicast.bytes};
  for (const ExchangeItem& item : multicast.items) {
    for_each_key(item.keys, [&](std::size_t k) {
      planned.items.emplace_back(plan.samples().id(item.sample), plan.samples().keys()[plan.keys()[k]].name);
    });
  }
  return planned;
}

void bind_destination(nb::module_& module) {
  nb::class_<Destination>(module, "Destination", "Ranks and samples: each of the ranks receives each of the samples.")
      .def(
          "__init__",
          [](Destination* self, std::vector<int> ranks, std::vector<std::string> ids, std::uint16_t part,
             std::uint16_t parts, bool zigzag) {
            new (self) Destination{std::move(ranks), std::move(ids), {part, parts, zigzag}};
          },
          nb::arg("ranks"), nb::arg("ids"), nb::kw_only(), nb::arg("part") = 0, nb::arg("parts") = 1,
          nb::arg("zigzag") = false,
          "part, parts, zigzag: the part of each sequence of the cut keys; other keys are sent whole. A zigzag part is "
          "chunks part and 2*parts-1-part of 2*parts.")
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
  nb::class_<PlannedMulticast>(module, "Multicast", "The items that one rank sends to a set of ranks.")
      .def_ro("source", &PlannedMulticast::source, "The rank that sends.")
      .def_ro("to", &PlannedMulticast::to, "The ranks that receive, ascending.")
      .def_ro("items", &PlannedMulticast::items, "(id, key), ascending.")
      .def_ro("bytes", &PlannedMulticast::bytes);
}

void bind_plan(nb::module_& module) {
  nb::class_<ExchangePlan> type(module, "ExchangePlan",
                                "The moves of an exchange: at most one multicast for each sender and set of receivers. "
                                "A value; printing it shows a table.");
  type.def("__len__", &ExchangePlan::size)
      .def("__getitem__", &multicast_at, nb::arg("number"),
           "Returns a multicast; they are ordered by sender, then by receivers.")
      .def_prop_ro("moved_bytes", &ExchangePlan::moved_bytes,
                   "Bytes that leave their senders, each multicast counted once.")
      .def_prop_ro("lower_bound_bytes", &ExchangePlan::lower_bound_bytes,
                   "The minimum of any plan that sends an item to no host that has it.")
      .def_prop_ro("delivered_bytes", &ExchangePlan::delivered_bytes, "Bytes that arrive, counted at each rank.")
      .def_prop_ro(
          "busiest", [](const ExchangePlan& plan) { return std::pair(plan.busiest().rank, plan.busiest().bytes); },
          "(rank, bytes) of the rank that sends the most; rank -1 if nothing moves.")
      .def_prop_ro(
          "edges",
          [](const ExchangePlan& plan) {
            std::vector<std::tuple<int, int, std::uint64_t>> edges;
            for (const auto& edge : plan.edges()) edges.emplace_back(edge.from, edge.to, edge.bytes);
            return edges;
          },
          "(from, to, bytes) of each pair of ranks, ascending.")
      .def_prop_ro("ranks", &ExchangePlan::ranks, "Ranks that send or receive, ascending.")
      .def("to_table", &ExchangePlan::to_table, "Returns a table to read: a row for each multicast, then the sums.")
      .def("to_json", &ExchangePlan::to_json, nb::arg("with_ids") = false,
           "Returns one JSON object: multicasts, moved_bytes, lower_bound_bytes, delivered_bytes, busiest, edges.")
      .def("__str__", &ExchangePlan::to_table)
      .def(
          "__eq__",
          [](const ExchangePlan& plan, nb::handle other) {
            return nb::isinstance<ExchangePlan>(other) && plan == nb::cast<const ExchangePlan&>(other);
          },
          nb::sig("def __eq__(self, other: object, /) -> bool"), "Whether both have the same moves.")
      .def("__repr__", [](const ExchangePlan& plan) {
        return fmt::format("<ExchangePlan: {} multicasts, {} bytes>", plan.size(), plan.moved_bytes());
      });
}

void bind_result(nb::module_& module) {
  nb::class_<ExchangeResult>(module, "ExchangeResult", "The work of one exchange.")
      .def_ro("multicasts", &ExchangeResult::multicasts,
              "The number of multicasts: at most one for each sender and set of receivers.")
      .def_ro("moved_bytes", &ExchangeResult::moved_bytes,
              "The bytes that all ranks sent, each multicast counted once.")
      .def_ro("lower_bound_bytes", &ExchangeResult::lower_bound_bytes,
              "The minimum of any plan that sends an item to no host that has it.")
      .def_ro("delivered_bytes", &ExchangeResult::delivered_bytes,
              "The bytes that all ranks received, counted at each rank.")
      .def_ro("sent_bytes", &ExchangeResult::sent_bytes, "The bytes that this rank sent, each message counted once.")
      .def_ro("sent_messages", &ExchangeResult::sent_messages)
      .def_ro("received_bytes", &ExchangeResult::received_bytes, "The bytes that this rank received.")
      .def_ro("agreed_bytes", &ExchangeResult::agreed_bytes,
              "The bytes that this rank sent to rank 0 before anything moved.")
      .def_prop_ro("agree_seconds", [](const ExchangeResult& result) { return seconds(result.agree_time); })
      .def_prop_ro(
          "plan_seconds", [](const ExchangeResult& result) { return seconds(result.plan_time); },
          "The seconds spent planning on rank 0, which plans for all; 0 on other ranks.")
      .def_prop_ro("move_seconds", [](const ExchangeResult& result) { return seconds(result.move_time); });
}

ExchangeResult redistribute(Membership& job, StoreBinding& binding, const ExchangeRequest& request,
                            std::optional<std::uint64_t> chunk_bytes, std::uint64_t in_flight_bytes, double timeout) {
  ExchangeOptions options{
      .timeout = duration_of(timeout), .chunk_bytes = chunk_bytes, .in_flight_bytes = in_flight_bytes};
  return interruptible_on(job, "an exchange", [&, shared = job.exchange()](const auto&, const auto& poll) mutable {
    const auto exchange = std::move(shared);  // dropped without the GIL, as EngineWithoutGil drops the engine
    options.poll = poll;
    return exchange->redistribute(binding.store, request, options);
  });
}

SampleDirectory all_gather(Membership& job, const StoreBinding& binding, double timeout) {
  ExchangeOptions options{.timeout = duration_of(timeout)};
  return interruptible_on(job, "an exchange", [&, shared = job.exchange()](const auto&, const auto& poll) mutable {
    const auto exchange = std::move(shared);  // dropped without the GIL, as EngineWithoutGil drops the engine
    options.poll = poll;
    return exchange->all_gather(binding.store, options);
  });
}

ModelRanks model_of(const Mesh& mesh, const std::optional<std::vector<int>>& ranks) {
  return ranks ? ModelRanks{mesh, *ranks} : ModelRanks::from(mesh);
}

void bind_functions(nb::module_& module) {
  nb::class_<ExchangeRequest>(module, "ExchangeRequest", "The request of an exchange.")
      .def(
          "__init__",
          [](ExchangeRequest* self, std::vector<Destination> destinations, std::vector<std::string> keys,
             std::vector<std::string> cut_keys, bool allow_absent) {
            new (self) ExchangeRequest{std::move(destinations), std::move(keys), std::move(cut_keys), allow_absent};
          },
          nb::arg("destinations"), nb::arg("keys"), nb::arg("cut_keys"), nb::arg("allow_absent"));
  module.def(
      "plan_exchange",
      // Takes a copy, which shares the memory but which other threads cannot change.
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
