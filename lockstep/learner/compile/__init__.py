"""The compiled gradient step, and the compiled code that is kept between runs."""
