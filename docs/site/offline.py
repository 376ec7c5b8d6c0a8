"""A hook of mkdocs: the one script that the theme would fetch from elsewhere comes from the site itself."""

ELSEWHERE, HERE = "https://unpkg.com/iframe-worker/shim", "assets/iframe-worker.js"


def on_post_page(output: str, page, config) -> str:
    """The page, with the script that search needs where a page is opened from a disk."""
    return output.replace(ELSEWHERE, "../" * page.url.count("/") + HERE)
