class A:
    @property
    def __signature__(self):
        raise SystemExit

    def __call__(self, *a):
        return 1


my_advance = A()
