// Exchanges between stores that change in between: receivers get what the holders have, and holders with different
// contents of one sample are rejected.
#include <gmock/gmock.h>

#include <random>

#include "levada/exchange/exchange_testing.h"

namespace levada {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Duration wait_limit = std::chrono::seconds(30);

/// Returns a key of a sample in one of its versions, which all have the same length.
SampleBatch version_of(const std::string& id, const std::string& key, int version) {
  const auto length = static_cast<std::int64_t>(3 + id.size() + key.size());
  Tensor tensor = Tensor::zeros(dtypes::uint8, {length});
  for (std::int64_t i = 0; i < length; ++i) {
    tensor.mutable_as<std::uint8_t>()[static_cast<std::size_t>(i)] =
        static_cast<std::uint8_t>(i * 7 + version * 16 + static_cast<int>(key.size()));
  }
  SampleBatch batch({id});
  batch.set(key, tensor, Seqlens::one_each({length}));
  return batch;
}

Bytes bytes_of(const SampleBatch& batch, const std::string& key) {
  const Tensor tensor = batch.packed(key);
  return {tensor.bytes().begin(), tensor.bytes().end()};
}

TEST(UpdateOnOneHolder, IsRejectedOnAllRanksUntilAllHoldersHaveIt) {
  const ExchangeRequest to_one{{{{1}, {"a"}}}, {"x"}}, to_two{{{{2}, {"a"}}}, {"x"}};
  const auto updated_alike = [&](SampleStore& store, int rank) {
    if (rank == 1) store.update(version_of("a", "x", 2));
  };
  const auto removed = [&](SampleStore& store, int rank) {
    if (rank == 1) store.remove(std::vector<std::string>{"a"});
  };
  for (const std::function<void(SampleStore&, int)>& remedy : {std::function(updated_alike), std::function(removed)}) {
    inproc::run_ranks(3, [&](const std::shared_ptr<Engine>& engine) {
      const int rank = engine->info().rank;
      Exchange exchange(engine);
      SampleStore store;
      if (rank == 0) store.store(version_of("a", "x", 1));
      exchange.redistribute(store, to_one, {.timeout = wait_limit});
      if (rank == 0) store.update(version_of("a", "x", 2));
      for (const ExchangeRequest& request : {to_one, to_two}) {
        EXPECT_THAT(refusal([&] { exchange.redistribute(store, request, {.timeout = wait_limit}); }),
                    AllOf(HasSubstr("sample a, key x has other contents on rank 1 than on rank 0"),
                          HasSubstr("update it alike on all ranks that hold it, or remove the old copies")));
      }
      remedy(store, rank);
      for (const ExchangeRequest& request : {to_one, to_two}) {
        exchange.redistribute(store, request, {.timeout = wait_limit});
      }
      EXPECT_EQ(bytes_of(store.get(std::vector<std::string>{"a"}), "x"), bytes_of(version_of("a", "x", 2), "x"));
    });
  }
}

TEST(RanksThatStoreTheSameSample, MustStoreTheSameContents) {
  for (const int other : {1, 2}) {
    const auto texts = refusals(3, [&](const std::shared_ptr<Engine>& engine) {
      SampleStore store;
      const int rank = engine->info().rank;
      if (rank < 2) store.store(version_of("a", "x", rank == 1 ? other : 1));
      Exchange(engine).redistribute(store, {{{{2}, {"a"}}}, {"x"}}, {.timeout = wait_limit});
      throw InvalidArgument("none");
    });
    for (const std::string& text : texts)
      EXPECT_THAT(text, HasSubstr(other == 1 ? "none" : "other contents on rank 1"));
  }
}

/// The expected state of each rank: the version and the part, by id and key.
struct Copy {
  int version = 0;
  SequencePart part;
};
using Stores = std::vector<std::map<std::string, std::map<std::string, Copy>>>;

Bytes expected_bytes(const std::string& id, const std::string& key, const Copy& copy) {
  const Bytes whole = bytes_of(version_of(id, key, copy.version), key);
  const TokenRanges tokens = tokens_in(copy.part, std::ssize(whole));
  Bytes part(whole.begin() + tokens.begin, whole.begin() + tokens.end);
  part.insert(part.end(), whole.begin() + tokens.second_begin, whole.begin() + tokens.second_end);
  return part;
}

/// Changes stores and exchanges at random. Every rank derives all stores from one seed. Rank 0 never loses a sample.
void changes_and_exchanges(const std::shared_ptr<Engine>& engine, unsigned seed) {
  const int mine = engine->info().rank, ranks = engine->info().size;
  const std::vector<std::string> ids = {"a", "bb", "ccc"}, keys = {"x", "yy"};
  std::mt19937 random(seed);
  const auto chance = [&](unsigned one_of) { return random() % one_of == 0; };
  Exchange exchange(engine);
  SampleStore store;
  if (seed % 2 == 0) store.use_memory_of(engine);
  Stores all(static_cast<std::size_t>(ranks));
  const auto has = [&](int rank, const std::string& id) { return all[static_cast<std::size_t>(rank)].contains(id); };
  int version = 1;
  for (const std::string& id : ids) {
    for (const std::string& key : keys) {
      all[0][id][key] = {version, {}};
      if (mine != 0) continue;
      if (store.has(id)) store.update(version_of(id, key, version));
      else store.store(version_of(id, key, version));
    }
  }
  for (int round = 0; round < 12; ++round) {
    for (int rank = 0; rank < ranks; ++rank) {
      for (const std::string& id : ids) {
        if (rank > 0 && has(rank, id) && chance(3)) {
          all[static_cast<std::size_t>(rank)].erase(id);
          if (rank == mine) store.remove(std::vector<std::string>{id});
        }
      }
    }
    if (chance(2)) {
      const std::string &id = ids[random() % ids.size()], &key = keys[random() % keys.size()];
      version = version % 12 + 1;
      const bool on_all = chance(2);
      const int one = static_cast<int>(random() % static_cast<unsigned>(ranks));
      for (int rank = 0; rank < ranks; ++rank) {
        if (!has(rank, id) || (!on_all && rank != one)) continue;
        all[static_cast<std::size_t>(rank)][id][key] = {version, {}};
        if (rank == mine) store.update(version_of(id, key, version));
      }
    }
    ExchangeRequest request{{}, keys, {"x"}, true};
    std::set<std::string> requested;
    for (int rank = 0; rank < ranks; ++rank) {
      Destination destination{{rank}, {}, chance(2) ? SequencePart{} : SequencePart{1, 2, chance(2)}};
      for (const std::string& id : ids) {
        if (chance(2)) destination.ids.push_back(id);
      }
      requested.insert(destination.ids.begin(), destination.ids.end());
      request.destinations.push_back(destination);
    }
    bool differ = false;
    for (const std::string& id : requested) {
      for (const std::string& key : keys) {
        std::set<int> versions;
        for (auto& of_rank : all) {
          if (of_rank.contains(id) && of_rank[id].contains(key)) versions.insert(of_rank[id][key].version);
        }
        differ = differ || versions.size() > 1;
      }
    }
    const auto run = [&] { exchange.redistribute(store, request, {.timeout = wait_limit}); };
    if (differ) {
      ASSERT_THAT(refusal(run), HasSubstr("has other contents on rank")) << "seed " << seed << ", round " << round;
      continue;
    }
    run();
    for (int rank = 0; rank < ranks; ++rank) {
      const Destination& destination = request.destinations[static_cast<std::size_t>(rank)];
      for (const std::string& id : destination.ids) {
        for (const std::string& key : keys) {
          const SequencePart part = key == "x" ? destination.part : SequencePart{};
          auto& held = all[static_cast<std::size_t>(rank)][id];
          const auto known = held.find(key);
          if (known != held.end() && (known->second.part.is_whole() || known->second.part == part)) continue;
          held[key] = {all[0][id][key].version, part};
        }
      }
    }
    for (const auto& [id, held] : all[static_cast<std::size_t>(mine)]) {
      for (const auto& [key, copy] : held) {
        ASSERT_EQ(bytes_of(store.get(std::vector{id}, std::vector{key}), key), expected_bytes(id, key, copy))
            << "seed " << seed << ", round " << round << ", rank " << mine << ", sample " << id << ", key " << key;
      }
    }
  }
}

TEST(StoresThatChangeBetweenExchanges, GetTheHoldersContentsOrAnError) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    inproc::run_ranks(3, [&](const std::shared_ptr<Engine>& engine) { changes_and_exchanges(engine, seed); });
  }
}

}  // namespace
}  // namespace levada
