#include "levada/cli/cli.h"

int main(int argc, char** argv) {
  return levada::cli::run(argc, argv);
}
