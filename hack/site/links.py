"""Pages outside docs are pages of the site too, and links to other files lead to the repository."""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
PAGES = {"README.md": "index.md", "docs/README.md": "pages.md", "ARCHITECTURE.md": "architecture.md", "CONTRIBUTING.md": "contributing.md"}
LINK = re.compile(r'(\]\(|\b(?:src|srcset|href)=")(?![a-z]+:|#)([^)"#\s]+)')


def on_config(config):
    adr = sorted("adr/" + p.name for p in (ROOT / "docs/adr").glob("*.md"))
    config["nav"][-1]["Change it"].append({"Decisions": adr})


def on_files(files, config):
    for source, uri in PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown, page, config, files):
    uri = page.file.src_uri
    source = next((s for s, u in PAGES.items() if u == uri), "docs/" + uri)

    def rewrite(link):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[2]))
        if target not in PAGES and (not target.startswith("docs/") or (ROOT / target).is_dir()):
            return f"{link[1]}{config['repo_url']}/blob/main/{target}"
        to = PAGES.get(target, target.removeprefix("docs/"))
        return link[1] + posixpath.relpath(to, posixpath.dirname(uri) or ".")

    return LINK.sub(rewrite, markdown)
