"""What a reader sees of a figure."""


def lines(ax):
    """The labelled lines of an axes, by label."""
    return {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def shown_texts(fig):
    """Every text a reader sees; a tick outside the view has a label that is not drawn."""
    for ax in fig.axes:
        yield from (ax.title, ax._left_title, ax._right_title)
        yield from ax.get_legend().get_texts() if ax.get_legend() else ()
        for axis in (ax.xaxis, ax.yaxis):
            yield axis.label
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks():
                if low <= tick.get_loc() <= high:
                    yield from (tick.label1, tick.label2)
    yield from fig.texts


def texts_overlap(fig):
    """Pairs of texts of a drawn figure whose boxes meet."""
    fig.canvas.draw()
    shown = [t for t in shown_texts(fig) if t.get_visible() and t.get_text()]
    boxes = [text.get_window_extent() for text in shown]
    return [
        (shown[i].get_text(), shown[j].get_text())
        for i in range(len(shown))
        for j in range(i)
        if boxes[i].overlaps(boxes[j])
    ]


def inside(fig):
    """Whether everything in a drawn figure lies within it."""
    box = fig.get_tightbbox(fig.canvas.get_renderer())  # inches
    width, height = fig.get_size_inches()
    return box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height
