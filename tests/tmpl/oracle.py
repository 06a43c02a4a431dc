"""Python's jinja2, set up as transformers sets it up for chat templates: the reference of the tests.

Written from the behaviour of transformers 5 (utils/chat_template_utils.py): an immutable sandbox,
trim_blocks and lstrip_blocks, loop controls, a `generation` tag, and its own `tojson`.
"""
import datetime
import json

import jinja2
import jinja2.ext
import jinja2.sandbox


class Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}: renders its body as it stands."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment(now):
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.fromtimestamp(now).strftime(form)
    return env


class Oracle:
    """One template. render() gives (text, None) or (None, error)."""

    def __init__(self, source, now):
        self.error = None
        try:
            self.template = environment(now).from_string(source)
        except jinja2.exceptions.TemplateError as e:
            self.error = e

    def render(self, messages, tools=None, extra=None, **rest):
        if self.error:
            return None, self.error
        variables = {"documents": None, **(extra or {}), "messages": messages, "tools": tools,
                     "add_generation_prompt": False, **rest}
        try:
            return self.template.render(**variables), None
        except Exception as e:  # whatever a template does to Python is an error of the template
            return None, e
