"""Statistics and page of the leaderboard."""


def write_page(values, results, page):
    raise NotImplementedError
