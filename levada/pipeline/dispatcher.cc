// The dispatching process: makes items and deals them to the workers in turn.
#include <algorithm>
#include <utility>

#include "levada/pipeline/pace.h"
#include "levada/pipeline/station.h"

namespace levada::pipeline {
namespace {

using protocol::Ending;

class Dispatcher {
 public:
  explicit Dispatcher(Station& station) : station_(station), shares_(static_cast<std::size_t>(station.crew().workers)) {
    const Process& process = station.process();
    for (int w = 0; w < station.crew().workers; ++w) {
      outgoing_.push_back(std::make_unique<Outgoing>(process.engine, station.crew().rank_of(w),
                                                     worker_edge(process.options), station.traffic()));
    }
  }

  void run() {
    station_.run_passes([this] { run_pass(); },
                        [this] {
                          for (const auto& outgoing : outgoing_) outgoing->drop();
                        });
  }

 private:
  /// What one worker gets next.
  struct Share {
    std::int64_t first = 0;
    std::vector<Item> items;
    bool told_ending = false;
  };
  struct Failed {
    std::int64_t number = 0;  ///< of the item in whose place it comes
    Failure failure;
  };

  int workers() const { return station_.crew().workers; }
  const ProcessOptions& options() const { return station_.process().options; }
  Failed failed(const std::exception_ptr& error, std::int64_t number) const {
    return {number, failure_of(error, station_.process().name, number)};
  }

  void run_pass() {
    dealer_ = protocol::Dealer(workers(), station_.loop().reset());
    pace_ = Pace(options().worker_prefetch > 0 ? Pace::most_items : 1);
    rate_ = {};
    saved_at_ = dealer_.number();
    place_.reset();
    shares_.assign(shares_.size(), {});
    std::optional<Failed> failure;
    try {
      failure = deal_all();
    } catch (const std::exception&) {
      if (station_.interrupted()) return;
      failure = failed(std::current_exception(), dealer_.number());
    }
    // What was made before it comes first, and may fail on its way.
    if (auto earlier = put_shares(failure ? Ending::none : Ending::ended)) failure = std::move(earlier);
    if (failure) put_failure(*failure);
    station_.send(outgoing_);
    for (;;) station_.wait_for_orders();
  }

  std::optional<Failed> deal_all() {
    const auto& loop = station_.loop();
    const Running running = station_.running(
        {.role = Role::dispatcher, .rank = options().rank, .ranks = options().ranks, .workers = options().workers});
    if (station_.process().begin_epoch) station_.process().begin_epoch(running.opening);
    const auto stream = open(station_.process().graph, *station_.placement().dealt, running);
    if (!loop.reset().dispatcher.cursor.empty()) stream->restore(unpack_cursor(loop.reset().dispatcher.cursor));
    for (;;) {
      station_.attend();
      begin_message(*stream);
      for (bool full = false; !full && dealer_.number() < loop.dealt_bound();) {
        auto item = stream->next();
        if (!item) return std::nullopt;
        if (dealer_.wanted()) add(*std::move(item));
        dealer_.dealt();
        full = pace_.add(Clock::now);
      }
      if (auto failure = flush()) return failure;
      while (dealer_.number() >= loop.dealt_bound()) station_.wait_for_orders();
    }
  }

  void begin_message(const Stream& stream) {
    const auto now = Clock::now();
    pace_.begin(now);
    if (!rate_.due(dealer_.number() - saved_at_, now)) return;
    saved_at_ = dealer_.number();
    place_ = protocol::Place{dealer_.number(), pack_cursor(stream.save())};
  }

  void add(Item item) {
    Share& share = shares_[static_cast<std::size_t>(dealer_.worker())];
    if (share.items.empty()) share.first = dealer_.number();
    share.items.push_back(std::move(item));
  }

  std::optional<Failed> flush() {
    const auto made = Clock::now();
    auto failure = put_shares(Ending::none);
    std::size_t bytes = 0;
    for (const auto& outgoing : outgoing_) bytes += outgoing->take_bytes();
    pace_.sent(made, bytes);
    station_.gave(dealer_.number());
    if (!failure) station_.send(outgoing_);
    return failure;
  }

  /// Puts what each worker gets next, and the ending behind it. Gives the first item that cannot be packed.
  std::optional<Failed> put_shares(Ending ending) {
    const auto first = std::min_element(shares_.begin(), shares_.end(), [](const Share& a, const Share& b) {
      return !a.items.empty() && (b.items.empty() || a.first < b.first);
    });
    const StageScope scope(station_.log(), StageWork::pack);
    std::optional<Failed> failure;
    for (Share& share : shares_) {
      const auto worker = static_cast<std::size_t>(&share - shares_.data());
      auto place = &share == &*first ? std::exchange(place_, std::nullopt) : std::nullopt;
      try {
        put_share(worker, ending, std::move(place));
      } catch (const Outgoing::CannotPack& item) {
        const std::int64_t number = share.first + static_cast<std::int64_t>(item.item) * workers();
        if (!failure || number < failure->number) {
          failure = {number, station_.cannot_pack(*station_.placement().dealt, number, item.cause)};
        }
      }
      share.items.clear();
    }
    return failure;
  }

  void put_share(std::size_t worker, Ending ending, std::optional<protocol::Place> place) {
    Share& share = shares_[worker];
    if (share.items.empty() && ending == Ending::none) return;
    outgoing_[worker]->put(share.items, station_.process().values, [&](std::size_t begin, std::size_t end) {
      protocol::Items items{.pass = station_.loop().pass(),
                            .first = share.first + static_cast<std::int64_t>(begin) * workers(),
                            .count = static_cast<std::uint32_t>(end - begin)};
      if (place) items.places.push_back(*std::exchange(place, std::nullopt));
      if (end == share.items.size()) items.ending = ending;
      share.told_ending = items.ending != Ending::none;
      return items;
    });
  }

  /// The failure in the place of its item, and the end for all others.
  void put_failure(const Failed& failed) {
    for (Share& share : shares_) {
      if (share.told_ending) continue;
      const auto worker = static_cast<std::size_t>(&share - shares_.data());
      const bool fails = failed.number % workers() == static_cast<std::int64_t>(worker);
      outgoing_[worker]->put({}, station_.process().values, [&](std::size_t, std::size_t) {
        protocol::Items items{.pass = station_.loop().pass(), .ending = fails ? Ending::failed : Ending::ended};
        if (fails) items.failure = failed.failure;
        return items;
      });
    }
  }

  Station& station_;
  std::vector<std::unique_ptr<Outgoing>> outgoing_;
  std::vector<Share> shares_;
  protocol::Dealer dealer_;
  Pace pace_;
  SaveRate rate_;
  std::int64_t saved_at_ = 0;
  std::optional<protocol::Place> place_;  ///< to be sent with the next items
};

}  // namespace

void dispatch(Station& station) {
  Dispatcher(station).run();
}

}  // namespace levada::pipeline
