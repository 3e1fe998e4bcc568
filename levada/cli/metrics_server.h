// The HTTP server of `--metrics`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "levada/base/deadline.h"
#include "levada/base/unique_fd.h"

namespace levada::cli {

/// Serves a text over HTTP. To bound the resources that clients can use, it serves at most eight of them at once, each
/// for at most five seconds, and disconnects further ones. A slow client does not delay the others.
class MetricsServer {
 public:
  /// Throws EngineError that names the option if it cannot listen on the port.
  MetricsServer(const std::string& host, int port);

  /// Serves clients until `stop` is readable. Calls `text` on this thread for each request.
  void run(int stop, const std::function<std::string()>& text);

 private:
  struct Client {
    UniqueFd socket;
    Deadline deadline;
    std::string request = {}, response = {};  ///< the response is empty until the request is complete
  };
  bool accept_clients();
  /// Reads what has arrived, or sends as much as the socket accepts. Returns whether the client stays connected.
  static bool advance(Client& client, const std::function<std::string()>& text);

  UniqueFd listener_;
  std::vector<Client> clients_;
};

}  // namespace levada::cli
