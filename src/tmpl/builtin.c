/* builtin.c: chat templates of models whose files may come without one. See tmpl.h. */
#include "tmpl/tmpl.h"

#include <string.h>

static const char k_chatml[] =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/* DeepSeek V4's own encoding (encoding/encoding_dsv4.py beside its weights): tool results are part of the user's turn, reasoning
 * of earlier turns is dropped unless there are tools. `enable_thinking` false: none; `reasoning_effort` "max". */
static const char k_deepseek4[] =
    "{%- set think = enable_thinking if enable_thinking is defined else (thinking if thinking is defined else true) -%}\n"
    "{%- set dsml = '｜DSML｜' -%}\n"
    "{%- set ns = namespace(last_user=-1, first_system=true, tools_done=false) -%}\n"
    "{%- for m in messages -%}{%- if m.role in ['user', 'developer', 'tool'] -%}{%- set ns.last_user = loop.index0 -%}{%- endif -%}{%- endfor -%}\n"
    "{%- macro tool_block() -%}\n"
    "{{- '\\n\\n## Tools\\n\\nYou have access to a set of tools to help answer the user\\'s question. You can invoke tools by writing a \"<' + dsml + 'tool_calls>\" block like the following:\\n\\n<' + dsml + 'tool_calls>\\n<' + dsml + 'invoke name=\"$TOOL_NAME\">\\n<' + dsml + 'parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</' + dsml + 'parameter>\\n...\\n</' + dsml + 'invoke>\\n<' + dsml + 'invoke name=\"$TOOL_NAME2\">\\n...\\n</' + dsml + 'invoke>\\n</' + dsml + 'tool_calls>\\n\\nString parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string=\"false\"`.\\n\\nIf thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.\\n\\nOtherwise, output directly after </think> with tool calls or final response.\\n\\n### Available Tool Schemas\\n\\n' -}}\n"
    "{%- for t in tools -%}{{- (t.function if t.function is defined else t) | tojson -}}{%- if not loop.last -%}{{- '\\n' -}}{%- endif -%}{%- endfor -%}\n"
    "{{- '\\n\\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\\n' -}}\n"
    "{%- endmacro -%}\n"
    "{{- bos_token -}}\n"
    "{%- if think and reasoning_effort is defined and reasoning_effort == 'max' -%}\n"
    "{{- 'Reasoning Effort: Absolute maximum with no shortcuts permitted.\\nYou MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\\nExplicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\\n\\n' -}}\n"
    "{%- endif -%}\n"
    "{%- if tools and messages[0].role not in ['system', 'developer'] -%}{{- tool_block() -}}{%- set ns.tools_done = true -%}{%- endif -%}\n"
    "{%- for m in messages -%}\n"
    "{%- set text = m.content if m.content else '' -%}\n"
    "{%- if m.role == 'system' -%}\n"
    "{{- text -}}\n"
    "{%- if tools and not ns.tools_done -%}{{- tool_block() -}}{%- set ns.tools_done = true -%}{%- endif -%}\n"
    "{%- elif m.role in ['user', 'developer', 'tool'] -%}\n"
    "{%- set joined = loop.index0 > 0 and loop.previtem.role in ['user', 'tool'] and m.role != 'developer' -%}\n"
    "{{- '\\n\\n' if joined else '<｜User｜>' -}}\n"
    "{{- '<tool_result>' + text + '</tool_result>' if m.role == 'tool' else text -}}\n"
    "{%- if m.role == 'developer' and tools and not ns.tools_done -%}{{- tool_block() -}}{%- set ns.tools_done = true -%}{%- endif -%}\n"
    "{%- if loop.last or loop.nextitem.role == 'assistant' -%}\n"
    "{%- if not loop.last or add_generation_prompt -%}\n"
    "{{- '<｜Assistant｜>' + ('<think>' if think and (tools or loop.index0 >= ns.last_user) else '</think>') -}}\n"
    "{%- endif -%}\n"
    "{%- endif -%}\n"
    "{%- elif m.role == 'assistant' -%}\n"
    "{%- if think and (tools or loop.index0 > ns.last_user) -%}{{- (m.reasoning_content if m.reasoning_content else '') + '</think>' -}}{%- endif -%}\n"
    "{{- text -}}\n"
    "{%- if m.tool_calls -%}\n"
    "{{- '\\n\\n<' + dsml + 'tool_calls>\\n' -}}\n"
    "{%- for c in m.tool_calls -%}\n"
    "{{- '<' + dsml + 'invoke name=\"' + c.function.name + '\">\\n' -}}\n"
    "{%- for k, v in c.function.arguments | items -%}\n"
    "{{- '<' + dsml + 'parameter name=\"' + k + '\" string=\"' + ('true' if v is string else 'false') + '\">' -}}\n"
    "{{- v if v is string else v | tojson -}}\n"
    "{{- '</' + dsml + 'parameter>' + ('' if loop.last else '\\n') -}}\n"
    "{%- endfor -%}\n"
    "{{- '\\n</' + dsml + 'invoke>' + ('' if loop.last else '\\n') -}}\n"
    "{%- endfor -%}\n"
    "{{- '\\n</' + dsml + 'tool_calls>' -}}\n"
    "{%- endif -%}\n"
    "{{- eos_token -}}\n"
    "{%- else -%}\n"
    "{{- raise_exception('DeepSeek V4 has no role ' + m.role) -}}\n"
    "{%- endif -%}\n"
    "{%- endfor -%}\n";

const char *ob_tmpl_builtin(const char *arch)
{
    return arch && strcmp(arch, "deepseek4") == 0 ? k_deepseek4 : k_chatml;
}
