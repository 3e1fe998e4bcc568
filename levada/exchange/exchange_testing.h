// Samples and redistributions for tests of exchanges.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "levada/base/hash.h"
#include "levada/base/refusal_testing.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/exchange/exchange.h"

namespace levada {

inline ModelRanks model(const std::string& mesh, int first = 0) {
  return ModelRanks::from(Mesh::parse(mesh), first);
}

/// Returns samples of many dtypes: ragged, empty, of several sequences, with trailing shapes. Their contents depend
/// only on the ids. `only`: the keys to include, or all if empty.
inline SampleBatch made_samples(const std::vector<std::string>& ids, const std::set<std::string>& only = {}) {
  struct KeySpec {
    SampleKey key;
    int sequences;
  };
  const KeySpec specs[] = {{{"tokens", dtypes::int64, {}}, 1},        {{"logprobs", dtypes::float64, {}}, 1},
                           {{"hidden", dtypes::bfloat16, {3, 2}}, 2}, {{"scales", dtypes::float8_e4m3fn, {5}}, 1},
                           {{"mask", dtypes::boolean, {}}, 1},        {{"bytes", dtypes::uint8, {}}, 3},
                           {{"nothing", dtypes::float32, {0}}, 1}};
  SampleBatch batch(ids);
  for (const auto& [key, sequences] : specs) {
    if (!only.empty() && !only.contains(key.name)) continue;
    Seqlens seqlens;
    std::vector<SampleBytes> items;
    for (const std::string& id : ids) {
      std::uint64_t state = hash64(as_bytes(id + key.name));
      std::vector<std::int64_t> lengths;
      for (int s = 0; s < sequences; ++s) lengths.push_back(static_cast<std::int64_t>(state >> (8 * s)) % 23 / 2);
      for (auto& length : lengths) length = std::max<std::int64_t>(length, 0);
      seqlens.push_back(lengths);
      std::int64_t total = 0;
      for (const std::int64_t length : lengths) total += length;
      const auto bytes = *key.bytes(total);
      const std::shared_ptr<std::byte[]> memory(new std::byte[bytes + 1]);
      for (std::size_t i = 0; i < bytes; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        memory[i] = static_cast<std::byte>(key.name == "mask" ? state >> 63 : state >> 56);
      }
      items.push_back({memory.get(), memory});
    }
    batch.set_bytes(key, std::move(items), std::move(seqlens));
  }
  for (std::size_t i = 0; i < ids.size(); ++i) batch.set_values(i, {{"from", ids[i]}});
  return batch;
}

inline std::vector<std::string> numbered_ids(int count, const std::string& prefix = "sample-") {
  std::vector<std::string> ids;
  for (int i = 0; i < count; ++i) ids.push_back(prefix + std::to_string(i));
  return ids;
}

/// Returns the ids dealt round-robin.
inline std::vector<std::vector<std::string>> dealt(const std::vector<std::string>& ids, int groups, int shift = 0) {
  std::vector<std::vector<std::string>> lists(static_cast<std::size_t>(groups));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    lists[(i + static_cast<std::size_t>(shift)) % lists.size()].push_back(ids[i]);
  }
  return lists;
}

/// Samples and the meshes that they move between.
struct Redistribution {
  ModelRanks from, to;
  std::vector<std::string> ids;
  std::vector<std::string> keys;

  /// Returns the ids that a rank holds: only the data-parallel heads of `from` hold any.
  std::vector<std::string> held_by(int rank) const {
    const auto heads = data_heads(from);
    const auto lists = dealt(ids, static_cast<int>(heads.size()));
    for (std::size_t d = 0; d < heads.size(); ++d) {
      if (heads[d] == rank) return lists[d];
    }
    return {};
  }
  ExchangeRequest request() const { return {destinations_of(to, dealt(ids, to.mesh.axis_size("dp"), 1)), keys}; }
  std::vector<std::string> wanted_by(int rank) const {
    std::vector<std::string> wanted;
    for (const Destination& destination : request().destinations) {
      if (std::ranges::find(destination.ranks, rank) == destination.ranks.end()) continue;
      wanted.insert(wanted.end(), destination.ids.begin(), destination.ids.end());
    }
    return wanted;
  }
};

/// Redistributes on this rank and compares with the simplest way: gather everything, then select. Returns what is
/// wrong, or nothing.
inline std::string check_redistribution(const std::shared_ptr<Engine>& engine, const Redistribution& what,
                                        const ExchangeOptions& options = {}) {
  const int rank = engine->info().rank;
  const std::set<std::string> keys(what.keys.begin(), what.keys.end());
  const SampleBatch all = made_samples(what.ids, keys);
  SampleStore store;
  if (rank % 2 == 0) store.use_memory_of(engine);  // so that some messages refer to samples, and others carry them
  const auto held = what.held_by(rank);
  if (!held.empty()) store.store(all.select_ids(held));
  const auto result = Exchange(engine).redistribute(store, what.request(), options);
  const auto wanted = what.wanted_by(rank);
  std::set<std::string> expected(held.begin(), held.end());
  expected.insert(wanted.begin(), wanted.end());
  if (store.ids() != std::vector<std::string>(expected.begin(), expected.end())) return "a different set of samples";
  if (!wanted.empty() && store.get(wanted, what.keys) != all.select_ids(wanted)) return "different contents";
  if (result.moved_bytes != result.lower_bound_bytes) return "more bytes moved than necessary";
  ByteWriter moved;
  moved.put(result.sent_bytes);
  moved.put(result.received_bytes);
  std::uint64_t sent = 0, received = 0;
  for (const Bytes& each : agree(*engine, moved.view(), Deadline::after(std::chrono::minutes(1)), "comparing")) {
    ByteReader reader(each);
    sent += reader.get<std::uint64_t>();
    received += reader.get<std::uint64_t>();
  }
  if (sent != result.moved_bytes || received != result.delivered_bytes)
    return "the number of bytes differs from the plan";
  return {};
}

/// Returns the error of each rank's exchange.
inline std::vector<std::string> refusals(int ranks, const std::function<void(std::shared_ptr<Engine>)>& body) {
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  inproc::run_ranks(ranks, [&](const std::shared_ptr<Engine>& engine) {
    texts[static_cast<std::size_t>(engine->info().rank)] = refusal([&] { body(engine); });
  });
  return texts;
}

inline void expect_all(const std::vector<std::string>& texts, const std::string& expected) {
  for (const std::string& text : texts) EXPECT_EQ(text, expected);
}

}  // namespace levada
