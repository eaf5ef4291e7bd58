# The project's commands; `make` lists them.

.DEFAULT_GOAL := help
.PHONY: help run build test test-quick test-llm bench lint fmt toolchain
# A recipe that fails must not leave a later one running.
.NOTPARALLEL:

# cargo-nextest runs the tests in parallel processes and ends those that hang;
# without it cargo's own runner does.
TEST := cargo $(shell cargo nextest --version >/dev/null 2>&1 && echo nextest run || echo test --tests)

help: ## List these commands
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

# The development profile: it builds in well under half the time of release,
# and the hot dependencies are optimised in it.
run: toolchain ## Build, and serve on SQLite and ./data; ARGS="--help" passes flags
	cargo run -- serve $(ARGS)

build: toolchain ## Build the release binary
	cargo build --release

# Doc tests and compile errors come before the services are started for nothing.
test: toolchain ## Run every test beside a real PostgreSQL and S3; TESTS=name selects
	cargo test --doc
	$(TEST) --no-run
	tests/services/with-services.sh $(TEST) $(TESTS)

test-quick: toolchain ## Run the tests that need neither: SQLite and a local directory
	env -u TURNKEEP_TEST_POSTGRES -u TURNKEEP_TEST_S3_ENDPOINT $(TEST) $(TESTS)

# Any server that speaks OpenAI's Chat Completions will do, such as llama.cpp's.
test-llm: toolchain ## Call the model at TURNKEEP_TEST_LLM_URL=http://HOST:PORT/v1
	cargo test --test provider --test service_ten_compactions a_real_model -- --nocapture

bench: toolchain ## Run the benchmarks of docs/benchmarks.md beside both services
	cargo bench --no-run
	tests/services/with-services.sh cargo bench $(ARGS)

lint: toolchain ## Check form, lints, documentation, proto files, scripts, dependencies
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings
	cargo clippy --all-targets --no-default-features --features server -- -D warnings
	cargo clippy --all-targets --no-default-features --features client -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps
	"$$(.ci/tool.sh buf)/buf" lint proto
	"$$(.ci/tool.sh shellcheck)/shellcheck" .ci/run .ci/tool.sh tests/services/*.sh
	"$$(.ci/tool.sh cargo-deny)/cargo-deny" check bans licenses sources

fmt: ## Format the code
	cargo fmt

toolchain:
	@command -v cargo >/dev/null || { echo "Rust is not installed: see README.md" >&2; exit 1; }
	@.ci/tool.sh cc >/dev/null
