// Collectives of one group, carried out one after the other in the background.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "levada/engine/engine.h"
#include "levada/reduce/contribution.h"

namespace levada {

/// What a collective comes to. Any thread may ask; the results live as long as they are held.
class Outcome {
 public:
  /// Whether it has ended, well or badly.
  bool done() const;
  /// One tensor an input. Waits for the end; throws what went wrong, and Timeout.
  const std::vector<Tensor>& results(Deadline deadline = Deadline::never()) const;

 private:
  friend class Reducer;
  void end(std::vector<Tensor> results, std::exception_ptr error);

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool done_ = false;
  std::vector<Tensor> results_;
  std::exception_ptr error_;
};

/// A rank's end of its group's collectives, which run on a thread of its own in the order in which they are launched:
/// the same on all ranks. Sums are made in the order of ranks, so that their bits depend on nothing else. One thread at
/// a time calls. After an error but InvalidArgument all later collectives fail in the same way.
class Reducer {
 public:
  /// Collective: opens the group's channels. `window`: messages of a rank that others have not taken yet. `timeout`: of
  /// one wait for another rank, and of one for memory.
  Reducer(std::shared_ptr<Engine> group, int window, Duration timeout);
  /// Gives up what has not ended.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Memory for `inputs` inputs of `bytes` in all, pieces of all ranks together. Waits for it; throws Timeout, which
  /// says who holds what there is, and what Engine::try_allocate() does.
  Contribution contribution(Agenda agenda, std::size_t bytes, std::size_t inputs);

  /// Carries out what the contributions' agendas say, with the inputs of all of them, in order, as one: all have the
  /// same agenda but for their pieces; how inputs are divided among contributions may differ between ranks. There is
  /// at least one. The results: of a reduce-scatter, the sum of this rank's piece; of an all-reduce, those of all
  /// pieces side by side along a new first dimension; of an all-gather, whose inputs are one piece each, those of all
  /// ranks in the same way. The Outcome throws InvalidArgument, naming ranks, input and shapes, where ranks disagree.
  std::shared_ptr<const Outcome> launch(std::vector<Contribution> contributions);

  /// Waits until all that was launched has ended, and gives the memory that nobody holds any more back to the system.
  void trim();

 private:
  struct Task {
    std::vector<Contribution> contributions;
    std::shared_ptr<Outcome> outcome;
  };
  /// What one rank has contributed to the collective under way.
  struct Given {
    std::vector<Lease> leases;
    std::vector<Received> messages;
    std::vector<std::pair<std::size_t, std::size_t>> where;  ///< of each input: message, and input in it
    bool complete = false;

    void add(Lease lease, InputsReader& reader);
    /// With the pieces of all messages.
    Agenda agenda() const;
    bool says_the_same_as(const Given& other) const;
    const Shape& shape(std::size_t input) const {
      return messages[where[input].first].agenda().pieces[where[input].second];
    }
    const std::byte* piece(std::size_t input, int number) const {
      return messages[where[input].first].piece(where[input].second, number);
    }
  };
  struct Outgoing {
    Channel* channel = nullptr;
    Contribution::Message message;
  };

  void run() noexcept;
  /// The next task; empty when there is to be none any more.
  std::optional<Task> next();
  std::vector<Tensor> carry_out(std::vector<Contribution> contributions);
  std::deque<Outgoing> outgoing(std::vector<Contribution> contributions, bool to_all);
  std::vector<Given> exchange(std::vector<Contribution> contributions);
  void check(const std::vector<Given>& given) const;
  std::vector<Tensor> reduce(const std::vector<Given>& given);
  std::vector<Tensor> spread(Agenda agenda, const std::vector<Tensor>& sums);
  std::vector<Tensor> side_by_side(const std::vector<Given>& given);
  Tensor result(DType dtype, const Shape& shape);
  Block allocate(std::size_t bytes);
  int rank() const { return group_->info().rank; }
  int size() const { return group_->info().size; }

  std::shared_ptr<Engine> group_;
  Duration timeout_;
  std::vector<std::shared_ptr<Channel>> to_all_;     ///< by sender
  std::vector<std::shared_ptr<Channel>> sending_;    ///< by taker, where ranks do not see each other's memory
  std::vector<std::shared_ptr<Channel>> receiving_;  ///< by sender
  InputsReader of_all_, of_own_;                     ///< messages for all ranks, and for this one alone
  std::shared_ptr<Block> shared_;                    ///< by small results of the collective under way
  std::size_t shared_used_ = 0;
  std::int64_t number_ = 0;

  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::condition_variable launched_;
  std::condition_variable idle_;
  std::deque<Task> tasks_;
  bool busy_ = false;
  std::exception_ptr broken_;
  std::thread thread_;
};

}  // namespace levada
