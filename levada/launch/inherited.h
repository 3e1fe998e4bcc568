// Variables and descriptors that run_local() passes to a rank across exec.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "levada/base/error.h"
#include "levada/base/unique_fd.h"

namespace levada::launch {

inline constexpr const char* links_variable = "LEVADA_LINKS";    ///< links_text() of descriptors of shm::make_links()
inline constexpr const char* report_variable = "LEVADA_REPORT";  ///< report_channel() that report_failure() writes to

/// Returns text such as "5,1234,77": a descriptor, the process that reads from its other end, and the inode of its
/// socket.
std::string report_channel(int descriptor);
/// Returns the message to send on that channel.
std::vector<char> encode_report(int rank, ErrorKind kind, std::string_view message);
/// Makes this process, and no process that it starts, the one that reports from now on.
void inherit_report_channel();

/// Returns text such as "5:77,6:78": descriptors, and the inodes of their sockets.
std::string links_text(const std::vector<int>& descriptors);
/// Returns the links in the form that shm::join() expects: on rank 0, one for each other rank, after an unused first
/// entry; on any other rank, one. If a descriptor is not the socket that the text names, as in a process that a rank
/// starts, or has already been taken, throws InvalidArgument and leaves the descriptors unchanged.
std::vector<UniqueFd> inherit_links(const char* text, int rank, int size);

}  // namespace levada::launch
