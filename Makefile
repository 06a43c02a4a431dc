# The two commands of the README, and a few more. CMake does the work (see CMakePresets.json).
#
#   make serve    install what is missing, build, fetch the demo model, serve it on port 8000
#   make test     build and run every test
#   make build    the release binary, build/1bit
#   make docs     write docs/cli.md and docs/1bit.1 from the option table
#   make clean    remove every build folder
BUILD := build
PORT ?= 8000
MODEL ?= smollm2-135m

.PHONY: all build serve test docs clean
all: build

# Stamps: a set-up is looked at again only when the list of packages changed or after `make clean`.
$(BUILD)/.setup-%: tools/setup.sh
	@bash tools/setup.sh $*
	@mkdir -p $(BUILD) && touch $@

build: $(BUILD)/.setup-build
	@test -e $(BUILD)/build.ninja || cmake --preset release
	@cmake --build $(BUILD)

serve: $(BUILD)/.setup-build
	@test -e $(BUILD)/build.ninja || cmake --preset release
	@cmake --build $(BUILD) --target 1bit
	@$(BUILD)/1bit pull $(MODEL)
	@exec $(BUILD)/1bit serve -m $(MODEL) --port $(PORT)

test: $(BUILD)/.setup-test build
	@bash tools/test.sh $(BUILD)

docs: build
	@cmake --build $(BUILD) --target docs

clean:
	rm -rf $(BUILD) build-asan build-tsan build-fuzz tests/web/node_modules
