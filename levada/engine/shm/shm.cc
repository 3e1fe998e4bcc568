#include "levada/engine/shm/shm.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "levada/base/error.h"
#include "levada/engine/shm/control.h"
#include "levada/engine/shm/endpoint.h"
#include "levada/engine/shm/frames.h"
#include "levada/engine/shm/start.h"

namespace levada::shm {
namespace {

void check_place(int rank, int size) {
  if (size < 1 || size > max_ranks) {
    throw InvalidArgument(
        fmt::format("{} ranks on a host: the shm engine takes 1 to {}; spread them over hosts", size, max_ranks));
  }
  if (rank < 0 || rank >= size) {
    throw InvalidArgument(fmt::format("rank {} does not exist among {}; ranks count from 0", rank, size));
  }
}

void check_links(int rank, int size, const std::vector<UniqueFd>& links) {
  const std::size_t expected = rank == 0 ? static_cast<std::size_t>(size) : 1;
  if (links.size() != expected) {
    throw InvalidArgument(
        fmt::format("rank {} of {} has {} links instead of {}; pass the links that make_links() returned for it", rank,
                    size, links.size(), expected));
  }
  for (std::size_t i = rank == 0 ? 1 : 0; i < links.size(); ++i) expect_frame_socket(links[i]);
}

}  // namespace

std::shared_ptr<Engine> join(int rank, int size, std::vector<UniqueFd> links, const Options& options) {
  check_place(rank, size);
  check_links(rank, size, links);
  const LinkSide side = rank == 0 ? LinkSide::listener : LinkSide::caller;
  StartConnections connected;
  for (UniqueFd& link : links) {
    connected.links.push_back(link ? StartLink(std::move(link), side, std::nullopt) : StartLink());
  }
  return make_engine(start(rank, size, std::move(connected), options, Deadline::after(options.timeout)));
}

std::shared_ptr<Engine> meet(int rank, int size, const MeetingPlace& place, const Options& options) {
  check_place(rank, size);
  const Deadline deadline = Deadline::after(options.timeout);
  StartConnections connected =
      rank == 0 ? gather(size, place, options, deadline) : find(rank, place, options, deadline);
  return make_engine(start(rank, size, std::move(connected), options, deadline));
}

bool refuse_start(int rank, int size, const MeetingPlace& place, ErrorKind kind, const std::string& message) {
  check_place(rank, size);
  const Deadline deadline = Deadline::after(time_for_late_ranks);
  const StartFailure cause{.kind = kind, .message = message};
  if (rank != 0) return send_failure_to_rank_zero(rank, place, cause, deadline);
  reject_ranks(size, place, cause, deadline);
  return false;
}

std::vector<std::vector<UniqueFd>> make_links(int size) {
  check_place(0, size);
  std::vector<std::vector<UniqueFd>> links(static_cast<std::size_t>(size));
  links[0].emplace_back();
  for (std::size_t rank = 1; rank < links.size(); ++rank) {
    auto [zero, other] = make_socket_pair();
    links[0].push_back(std::move(zero));
    links[rank].push_back(std::move(other));
  }
  return links;
}

}  // namespace levada::shm
