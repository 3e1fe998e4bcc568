#include "levada/exchange/exchange.h"

#include <gmock/gmock.h>

#include <atomic>
#include <csignal>
#include <map>
#include <mutex>
#include <thread>

#include "levada/base/hash.h"
#include "levada/base/refusal_testing.h"
#include "levada/engine/inproc/inproc.h"
#include "levada/engine/shm/forked_ranks_testing.h"
#include "levada/exchange/exchange_testing.h"

namespace levada {
namespace {

using testing::HasSubstr;

/// Returns all (pp, dp, tp) meshes on up to `most` ranks.
std::vector<Mesh> meshes(int most) {
  std::vector<Mesh> all;
  for (int pp = 1; pp <= most; ++pp) {
    for (int dp = 1; pp * dp <= most; ++dp) {
      for (int tp = 1; pp * dp * tp <= most; ++tp)
        all.emplace_back(std::vector<Axis>{{"pp", pp}, {"dp", dp}, {"tp", tp}});
    }
  }
  return all;
}

/// One mesh to all meshes at once; each pair has its own samples, and places that overlap, are equal or are disjoint.
struct MeshToAll {
  std::vector<std::vector<std::string>> held, wanted;  ///< by rank
  ExchangeRequest request{{}, {"mask", "tokens"}};

  MeshToAll(const std::vector<Mesh>& all, std::size_t from, int ranks, const std::vector<std::string>& ids)
      : held(static_cast<std::size_t>(ranks)), wanted(held) {
    const auto placed = [&](std::size_t mesh, std::size_t shift) {
      return ModelRanks::from(all[mesh],
                              static_cast<int>(shift % static_cast<std::size_t>(ranks - all[mesh].size() + 1)));
    };
    const auto share = static_cast<std::ptrdiff_t>(ids.size() / all.size());
    const auto heads = data_heads(placed(from, from));
    for (std::size_t to = 0; to < all.size(); ++to) {
      const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(to) * share;
      const std::vector<std::string> own(begin, begin + share);
      add(held, heads, dealt(own, static_cast<int>(heads.size())));
      for (auto& each : destinations_of(placed(to, from + to), dealt(own, all[to].axis_size("dp"), 1))) {
        for (const int rank : each.ranks) add(wanted, {rank}, {each.ids});
        request.destinations.push_back(std::move(each));
      }
    }
  }

 private:
  static void add(std::vector<std::vector<std::string>>& lists, const std::vector<int>& ranks,
                  const std::vector<std::vector<std::string>>& more) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      auto& list = lists[static_cast<std::size_t>(ranks[i])];
      list.insert(list.end(), more[i].begin(), more[i].end());
    }
  }
};

TEST(Exchange, MovesFromAnyMeshToAnyMesh) {
  constexpr int ranks = 16;
  const auto all = meshes(ranks);
  const auto ids = numbered_ids(3 * static_cast<int>(all.size()));
  const SampleBatch made = made_samples(ids, {"tokens", "mask"});
  std::vector<MeshToAll> exchanges;
  for (std::size_t from = 0; from < all.size(); ++from) exchanges.emplace_back(all, from, ranks, ids);
  std::mutex mutex;
  std::string faults;
  inproc::run_ranks(ranks, [&](const std::shared_ptr<Engine>& engine) {
    const auto rank = static_cast<std::size_t>(engine->info().rank);
    Exchange exchange(engine);
    for (std::size_t from = 0; from < all.size(); ++from) {
      const auto& [held, wanted, request] = exchanges[from];
      SampleStore store;
      store.store(made.select_ids(held[rank]));
      const auto result = exchange.redistribute(store, request, {.chunk_bytes = 256});
      std::set<std::string> expected(held[rank].begin(), held[rank].end());
      expected.insert(wanted[rank].begin(), wanted[rank].end());
      const bool good = store.ids() == std::vector<std::string>(expected.begin(), expected.end()) &&
                        (wanted[rank].empty() || store.get(wanted[rank]) == made.select_ids(wanted[rank])) &&
                        result.moved_bytes == result.lower_bound_bytes;
      if (good) continue;
      const std::lock_guard lock(mutex);
      faults += all[from].to_string() + " on rank " + std::to_string(rank) + "\n";
    }
  });
  EXPECT_EQ(faults, "");
}

TEST(Exchange, DeliversBitForBitBetweenProcesses) {
  const Redistribution cases[] = {
      {model("dp=4"), model("dp=2,tp=2"), numbered_ids(24), made_samples({}).keys()},
      {model("pp=2,dp=2"), model("dp=4"), numbered_ids(24), made_samples({}).keys()},
      {model("dp=2"), model("dp=1,tp=2", 2), numbered_ids(24), made_samples({}).keys()},
      {model("dp=3"), model("tp=3", 1), numbered_ids(24), {"tokens", "hidden", "nothing"}},
      {model("tp=4"), model("pp=4"), {}, {}},
  };
  for (const std::uint64_t chunk : {std::uint64_t{7}, std::uint64_t{4} << 20}) {
    const auto faults = shm::test::run_forked(4, [&](const std::shared_ptr<Engine>& engine) {
      for (const Redistribution& what : cases) {
        const auto fault = check_redistribution(engine, what, {.chunk_bytes = chunk, .in_flight_bytes = 1});
        if (!fault.empty()) throw EngineError(fault);
      }
    });
    EXPECT_EQ(faults, "");
  }
}

TEST(Exchange, DoesNotMoveSamplesThatHaveArrived) {
  inproc::run_ranks(3, [](const std::shared_ptr<Engine>& engine) {
    Exchange exchange(engine);
    SampleStore store;
    const int rank = engine->info().rank;
    if (rank == 0) store.store(made_samples(numbered_ids(5)));
    ExchangeRequest request{{{{1, 2}, numbered_ids(5)}}, {"tokens"}};
    EXPECT_GT(exchange.redistribute(store, request).moved_bytes, 0u);
    EXPECT_EQ(exchange.redistribute(store, request).multicasts, 0u);
    // Another key of the same samples is added, and a removed sample is delivered again.
    request.keys = {"tokens", "mask"};
    if (rank == 1) store.remove(std::vector<std::string>{"sample-3"});
    exchange.redistribute(store, request);
    EXPECT_EQ(store.get(numbered_ids(5), request.keys), made_samples(numbered_ids(5), {"tokens", "mask"}));
  });
}

TEST(Exchange, KeptSamplesPinLittleMemoryOfRemovedOnes) {
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < 60; ++i) lengths.push_back(i % 7 == 6 ? 30'000 : 200 * i);
  SampleBatch made(numbered_ids(60));
  std::int64_t total = 0;
  for (const std::int64_t length : lengths) total += length;
  made.set("a", Tensor::zeros(dtypes::int64, {total}), Seqlens::one_each(lengths));
  made.set("b", Tensor::zeros(dtypes::uint8, {total}), Seqlens::one_each(lengths));
  inproc::run_ranks(2, [&](const std::shared_ptr<Engine>& engine) {
    SampleStore store;
    if (engine->info().rank == 0) store.store(made);
    Exchange(engine).redistribute(store, {{{{1}, made.ids()}}, {"a", "b"}});
    if (engine->info().rank == 0) return;
    const SampleBatch got = store.get(made.ids());
    std::map<std::shared_ptr<const void>, std::pair<std::uint64_t, int>> memories;
    for (const std::string key : {"a", "b"}) {
      for (std::size_t i = 0; i < got.size(); ++i) {
        auto& [bytes, items] = memories[got.bytes_at(key, i).owner];
        bytes += *got.key(key).bytes(lengths[i]);
        ++items;
      }
    }
    EXPECT_LT(memories.size(), 2 * got.size());
    for (const auto& [owner, held] : memories) EXPECT_TRUE(held.first <= 256 << 10 || held.second == 1);
  });
}

TEST(Exchange, CutsSequencesAlongCp) {
  inproc::run_ranks(3, [](const std::shared_ptr<Engine>& engine) {
    SampleStore store;
    SampleBatch batch({"a"});
    batch.set("tokens", Tensor::of<std::int32_t>({11}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}), Seqlens::of({{{8, 3}}}));
    if (engine->info().rank == 0) store.store(batch);
    const ExchangeRequest request{destinations_of(model("cp=2", 1), {{"a"}}, Zigzag{"cp"}), {"tokens"}, {"tokens"}};
    const auto result = Exchange(engine).redistribute(store, request);
    EXPECT_EQ(result.moved_bytes, 44u);
    const auto got = store.get(std::vector<std::string>{"a"});
    if (engine->info().rank == 1) {
      EXPECT_THAT(got.item("tokens", 0)->as<std::int32_t>(), testing::ElementsAre(0, 1, 6, 7, 10));
    }
    if (engine->info().rank == 2) {
      EXPECT_THAT(got.item("tokens", 0)->as<std::int32_t>(), testing::ElementsAre(2, 3, 4, 5, 8, 9));
    }
    EXPECT_EQ(Exchange(engine).redistribute(store, request).multicasts, 0u);
    // A rank with a part receives the whole if it requests it; parts are never combined into a whole.
    const std::vector<std::string> ids{"a"};
    if (engine->info().rank == 0) store.remove(ids);
    EXPECT_THAT(refusal([&] {
                  Exchange(engine).redistribute(store, {{{{0}, ids}}, {"tokens"}});
                }),
                HasSubstr("only parts"));
    if (engine->info().rank == 0) store.store(batch);
    Exchange(engine).redistribute(store, {{{{2}, ids}}, {"tokens"}});
    EXPECT_EQ(store.get(ids) == batch, engine->info().rank != 1);
  });
}

TEST(Destinations, AreCutAlongOneNonDataAxis) {
  const auto parts = destinations_of(model("dp=2,sp=2"), {{"a"}, {"b"}}, Shard{"sp", 1});
  ASSERT_EQ(parts.size(), 4u);
  EXPECT_EQ(parts[3], (Destination{{3}, {"b"}, {1, 2, false}}));
  EXPECT_EQ(destinations_of(model("dp=2,cp=2"), {{"a"}, {"b"}}, sequence_placement("whole"))[1],
            (Destination{{2, 3}, {"b"}}));
  const std::string refused = "sequences cannot be placed by ";
  for (const Placement& wrong : {Placement(Shard{"cp", 0}), Placement(Zigzag{"dp", 1}), Placement(Stages{"pp", {}})}) {
    EXPECT_THAT(refusal([&] { destinations_of(model("dp=1,cp=2"), {{"a"}}, wrong); }), HasSubstr(refused));
  }
  EXPECT_THAT(refusal([] { sequence_placement("half"); }), HasSubstr("whole, consecutive or zigzag"));
  const auto of_ranks = [](std::vector<int> ranks) {
    destinations_of({Mesh::parse("dp=2"), std::move(ranks)}, {{"a"}, {"b"}});
  };
  EXPECT_EQ(refusal([&] { of_ranks({3, 3}); }), "rank 3 appears twice in one mesh");
  EXPECT_EQ(refusal([&] { of_ranks({0, -1}); }), "rank -1 cannot be in a mesh");
}

TEST(Exchange, DeliversSamplesWithoutTheKeysThatTheyLack) {
  inproc::run_ranks(3, [](const std::shared_ptr<Engine>& engine) {
    SampleStore store;
    const std::vector<std::string> ids{"a", "b"}, b{"b"};
    if (engine->info().rank == 0) {
      store.store(made_samples({"a"}, {"tokens"}));
      store.store(made_samples(b, {"tokens", "mask"}));
    }
    ExchangeRequest request{{{{1, 2}, ids}}, {"mask"}};
    EXPECT_EQ(refusal([&] { Exchange(engine).redistribute(store, request); }),
              "sample a, key mask is wanted on ranks 1,2, but no rank holds it");
    request.allow_absent = true;
    Exchange(engine).redistribute(store, request);
    EXPECT_EQ(store.get(b, request.keys), made_samples(b, {"mask"}));
    EXPECT_EQ(store.has("a"), engine->info().rank == 0);
    request.keys = {"mask", "never", "tokens"};  // one key is absent for all
    Exchange(engine).redistribute(store, request);
    EXPECT_EQ(store.get(ids, std::vector<std::string>{"tokens"}), made_samples(ids, {"tokens"}));
    EXPECT_FALSE(store.has("a", "mask"));
    request.destinations[0].ids.push_back("c");
    EXPECT_EQ(refusal([&] { Exchange(engine).redistribute(store, request); }),
              "sample c, keys mask, never, tokens is wanted on ranks 1,2, but no rank holds it");
  });
}

TEST(Exchange, RejectsValuesThatDifferFromTheReceivers) {
  const auto scored = [](const std::string& key, double score) {
    SampleBatch batch({"s"});
    batch.set(key, Tensor::zeros(dtypes::int64, {3}), Seqlens::one_each({3}));
    batch.set_values(0, {{"score", score}, {key, true}});
    return batch;
  };
  const ExchangeRequest request{{{{0}, {"s"}}}, {"tokens"}};
  expect_all(refusals(2,
                      [&](const auto& engine) {
                        const int rank = engine->info().rank;
                        SampleStore store;
                        store.store(rank == 0 ? scored("value", 2) : scored("tokens", 1));
                        Exchange(engine).redistribute(store, request);
                      }),
             "sample s has another value of score on rank 1 than on rank 0");
  inproc::run_ranks(2, [&](const auto& engine) {
    SampleStore store;
    store.store(engine->info().rank == 0 ? scored("value", 1) : scored("tokens", 1));
    Exchange(engine).redistribute(store, request);
    const auto values = store.get(std::vector<std::string>{"s"}).values(0);
    EXPECT_EQ(values.size(), engine->info().rank == 0 ? 3u : 2u);
  });
}

TEST(Exchange, FailsOnAllRanksBeforeAnythingMoves) {
  const auto exchange = [](const std::shared_ptr<Engine>& engine, const SampleBatch& mine,
                           const ExchangeRequest& request, std::uint64_t bound = UINT64_MAX) {
    SampleStore store({.max_bytes = bound});
    store.store(mine);
    const auto before = store.ids();
    try {
      Exchange(engine).redistribute(store, request);
    } catch (const InvalidArgument&) {
      EXPECT_EQ(store.ids(), before);
      throw;
    }
  };
  const auto tokens = [](const std::string& id, std::int64_t length, DType dtype = dtypes::int64) {
    SampleBatch batch({id});
    batch.set("tokens", Tensor::zeros(dtype, {length}), Seqlens::one_each({length}));
    return batch;
  };
  const ExchangeRequest request{{{{2}, {"a", "b"}}}, {"tokens"}};
  const auto own = [](const std::shared_ptr<Engine>& engine) { return std::string(1, "abc"[engine->info().rank]); };
  expect_all(refusals(3, [&](const auto& engine) { exchange(engine, tokens("a", 3), request); }),
             "sample b, key tokens is wanted on rank 2, but no rank holds it");
  expect_all(refusals(3,
                      [&](const auto& engine) {
                        exchange(engine, tokens(own(engine), 3), {request.destinations, {"x"}});
                      }),
             "sample a, key x is wanted on rank 2, but no rank holds it (the first of 2 errors)");
  expect_all(refusals(3,  // each rank lists its destinations in another order
                      [&](const auto& engine) {
                        ExchangeRequest mine{{{{2}, {"z", "a"}}, {{1, 0}, {"y", "z"}}, {{2}, {"y"}}}, {"tokens", "x"}};
                        auto& wants = mine.destinations;
                        std::rotate(wants.begin(), wants.begin() + engine->info().rank, wants.end());
                        if (engine->info().rank == 1) std::ranges::reverse(mine.keys);
                        exchange(engine, tokens(own(engine), 3), mine);
                      }),
             "sample y, keys tokens, x is wanted on ranks 0-2, but no rank holds it (the first of 2 errors)");
  expect_all(refusals(3,
                      [&](const auto& engine) {
                        const bool other = engine->info().rank == 1;
                        exchange(engine, tokens(own(engine), 3, other ? dtypes::float32 : dtypes::int64), request);
                      }),
             "key tokens is float32 [] for sample b on rank 1, but int64 [] for sample a on rank 0");
  expect_all(
      refusals(3, [&](const auto& engine) { exchange(engine, tokens("a", 3 + engine->info().rank % 2), request); }),
      "sample a, key tokens has sequences of [4] tokens on rank 1, but of [3] on rank 0");
  expect_all(refusals(3,
                      [&](const auto& engine) {
                        ExchangeRequest mine = request;
                        if (engine->info().rank == 2) mine.destinations[0].ids.pop_back();
                        exchange(engine, tokens(own(engine), 3), mine);
                      }),
             "ranks 0 and 2 pass different destinations; all ranks must request the same exchange");
  expect_all(refusals(3,
                      [&](const auto& engine) {
                        exchange(engine, tokens(own(engine), 3), {{{{7}, {"a"}}}, {"tokens"}});
                      }),
             "a destination names rank 7; the ranks are 0 to 2");
  expect_all(refusals(3, [&](const auto& engine) { exchange(engine, tokens(own(engine), 3), request, 40); }),
             "rank 2 is to receive 48 B, but its store, bounded to 40 B, has room for 16 B");
}

/// Returns long samples, each word of which follows from the id.
SampleBatch long_samples(const std::vector<std::string>& ids) {
  constexpr std::int64_t length = 20'000;
  SampleBatch batch(ids);
  Tensor packed = Tensor::empty(dtypes::uint64, {length * static_cast<std::int64_t>(ids.size())});
  auto to = packed.mutable_as<std::uint64_t>().begin();
  for (const std::string& id : ids) to = std::fill_n(to, length, hash64(as_bytes(id)));
  batch.set("tokens", packed, Seqlens::one_each(std::vector<std::int64_t>(ids.size(), length)));
  return batch;
}

TEST(Exchange, BoundsTheBytesInFlightAndReleasesThem) {
  constexpr int ranks = 6;
  constexpr std::uint64_t chunk = 64 << 10, in_flight = 4 * chunk;
  constexpr std::uint64_t agreement = 128 << 10;  // preflights and answers, if a rank is slow to receive them
  const auto lists = dealt(numbered_ids(60), ranks);
  inproc::run_ranks(ranks, [&](const std::shared_ptr<Engine>& engine) {
    const auto rank = static_cast<std::size_t>(engine->info().rank);
    SampleStore store;
    store.store(long_samples(lists[rank]));
    ExchangeRequest request{{}, {"tokens"}};  // to each rank from each other
    for (int to = 0; to < ranks; ++to)
      request.destinations.push_back({{to}, dealt(numbered_ids(60), ranks + 1)[static_cast<std::size_t>(to)]});
    std::atomic<std::uint64_t> most = 0;
    std::jthread watch([&](const std::stop_token& stop) {
      for (; !stop.stop_requested(); std::this_thread::yield()) most = std::max(most.load(), engine->memory_in_use());
    });
    const auto result =
        Exchange(engine).redistribute(store, request, {.chunk_bytes = chunk, .in_flight_bytes = in_flight});
    watch.request_stop();
    watch.join();
    EXPECT_GT(result.sent_bytes, 2 * in_flight);
    const auto held = store.ids();
    EXPECT_EQ(store.get(held), long_samples(held));
    // In the end only received samples remain in this rank's memory.
    const std::uint64_t stored = result.received_bytes + (64 << 10);
    const auto wait_until_at_most = [&](std::uint64_t bytes) {
      const auto limit = Deadline::after(std::chrono::seconds(20));
      while (engine->memory_in_use() > bytes && !limit.expired()) std::this_thread::yield();
      EXPECT_LE(engine->memory_in_use(), bytes);
    };
    EXPECT_LE(most, stored + in_flight + agreement);
    wait_until_at_most(stored);
    store.clear();
    wait_until_at_most(0);
  });
}

TEST(Exchange, LeavesNoPartialSamplesIfARankDies) {
  constexpr int ranks = 3, victim = 1;
  const auto lists = dealt(numbered_ids(48), ranks);
  const auto run = [&](const std::shared_ptr<Engine>& engine, bool in_engine_memory) {
    const auto rank = static_cast<std::size_t>(engine->info().rank);
    SampleStore store;
    if (in_engine_memory) store.use_memory_of(engine);
    store.store(long_samples(lists[rank]));
    const auto before = store.bytes();
    std::jthread killer;  // kills at the end if a busy machine has not run it before
    if (rank == victim) {
      killer = std::jthread([&](const std::stop_token& stop) {
        while (store.bytes() < 2 * before && !stop.stop_requested()) std::this_thread::yield();
        ::raise(SIGKILL);
      });
    }
    try {
      Exchange(engine).redistribute(store, {{{{0, 1, 2}, numbered_ids(48)}}, {"tokens"}},
                                    {.chunk_bytes = 4096, .in_flight_bytes = 1});
    } catch (const PeerLost& lost) {
      if (lost.rank() != victim) throw;
    }
    const auto held = store.ids();
    if (store.get(held) != long_samples(held)) throw EngineError("half a sample");
  };
  for (const bool in_engine_memory : {false, true}) {
    EXPECT_EQ(shm::test::run_forked(ranks, [&](const auto& engine) { run(engine, in_engine_memory); }),
              "rank 1 (signal 9): \n");
  }
}

TEST(Exchange, TimeoutNamesTheAwaitedRankOnAllRanks) {
  constexpr int waiting = 0, stalled = 1;
  const auto ids = numbered_ids(200);
  std::vector<SampleStore> stores(2);
  const auto lists = dealt(ids, 2);
  for (std::size_t rank = 0; rank < 2; ++rank) stores[rank].store(long_samples(lists[rank]));
  std::atomic<bool> gave_up = false;
  // Arrivals cannot be stored while another thread reads the store.
  std::thread stall([&, before = stores[stalled].bytes()] {
    while (stores[stalled].bytes() == before && !gave_up) std::this_thread::yield();
    const SampleStore::Reading here(stores[stalled]);
    gave_up.wait(false);
  });
  std::string texts[2];
  inproc::run_ranks(2, [&](const std::shared_ptr<Engine>& engine) {
    const int rank = engine->info().rank;
    const auto limit = std::chrono::milliseconds(rank == waiting ? 3'000 : 60'000);
    const ExchangeOptions options{.timeout = limit, .chunk_bytes = 512};
    try {
      Exchange(engine).redistribute(stores[static_cast<std::size_t>(rank)], {{{{0, 1}, ids}}, {"tokens"}}, options);
    } catch (const Error& error) {
      texts[rank] = error.what();
      EXPECT_EQ(error.kind(), rank == waiting ? ErrorKind::timeout : ErrorKind::peer_lost);
    }
    if (rank != waiting) return;
    gave_up = true;
    gave_up.notify_all();
  });
  stall.join();
  EXPECT_THAT(texts[waiting], testing::MatchesRegex("rank 0 waited .* in exchange .*from rank 1.*"));
  EXPECT_THAT(
      texts[stalled],
      testing::MatchesRegex("rank 0 left an exchange with Timeout: rank 0 waited .* in exchange .*from rank 1.*"));
  for (const SampleStore& store : stores) EXPECT_EQ(store.get(store.ids()), long_samples(store.ids()));
}

TEST(Exchange, MayTakeLongerThanItsTimeoutIfBytesKeepMoving) {
  constexpr Duration timeout = std::chrono::seconds(3), pause = std::chrono::milliseconds(600);
  const auto ids = numbered_ids(200);
  std::vector<SampleStore> stores(2);
  const auto lists = dealt(ids, 2);
  for (std::size_t rank = 0; rank < 2; ++rank) stores[rank].store(long_samples(lists[rank]));
  // Nothing can be stored at rank 1 while another thread reads its store.
  std::jthread slow([&](const std::stop_token& stop) {
    for (Duration held{}; held < 2 * timeout && !stop.stop_requested(); held += pause) {
      const auto before = stores[1].bytes();
      while (stores[1].bytes() == before && !stop.stop_requested()) std::this_thread::yield();
      const SampleStore::Reading here(stores[1]);
      std::this_thread::sleep_for(pause);
    }
  });
  const auto begin = Clock::now();
  inproc::run_ranks(2, [&](const std::shared_ptr<Engine>& engine) {
    SampleStore& store = stores[static_cast<std::size_t>(engine->info().rank)];
    Exchange(engine).redistribute(store, {{{{0, 1}, ids}}, {"tokens"}}, {.timeout = timeout, .chunk_bytes = 512});
    EXPECT_EQ(store.ids().size(), ids.size());
  });
  EXPECT_GT(Clock::now() - begin, timeout) << "otherwise the test checks nothing";
}

TEST(Exchange, CanBeRepeatedByTheSurvivors) {
  std::vector<SampleStore> stores(3);
  const auto lists = dealt(numbered_ids(9), 3);
  for (std::size_t rank = 0; rank < 3; ++rank) stores[rank].store(made_samples(lists[rank]));
  const ExchangeRequest all{{{{0, 1}, numbered_ids(9)}}, {"tokens"}};
  EXPECT_THROW(inproc::run_ranks(3,
                                 [&](const std::shared_ptr<Engine>& engine) {
                                   if (engine->info().rank == 2) return inproc::lose(*engine);
                                   Exchange(engine).redistribute(stores[static_cast<std::size_t>(engine->info().rank)],
                                                                 all);
                                 }),
               PeerLost);
  auto living = lists[0];
  living.insert(living.end(), lists[1].begin(), lists[1].end());
  inproc::run_ranks(2, [&](const std::shared_ptr<Engine>& engine) {
    SampleStore& store = stores[static_cast<std::size_t>(engine->info().rank)];
    Exchange(engine).redistribute(store, {{{{0, 1}, living}}, {"tokens"}});
    EXPECT_EQ(store.get(living, std::vector<std::string>{"tokens"}), made_samples(living, {"tokens"}));
  });
}

}  // namespace
}  // namespace levada
