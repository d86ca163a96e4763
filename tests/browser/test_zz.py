import pytest, os

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]
CELL = "from labkit.widgets import LiveTraining\nfrom labkit.train import TASKS\nfrom labkit.amp import RECIPES\nlive = LiveTraining(TASKS['painted_picture'], RECIPES['FP16'], seed=0)\nlive"


def test_look(lab):
    with lab.shown([CELL], ".labkit-live", name="zz", width=1280, height=720) as nb:
        page = nb.page
        root = page.locator(".labkit-live").first
        page.wait_for_timeout(1500)

        def shot(name):
            root.scroll_into_view_if_needed()
            page.screenshot(path=f"/tmp/zz_{name}.png")

        shot("0idle")
        print(root.bounding_box())
        root.get_by_role("button", name="Start", exact=True).click()
        nb.until_data("live", "Number(d.step) > 150")
        shot("1dying")
        root.locator(".lk-segment", has_text="static").click()
        nb.until_data("live", "Number(d.step) > 330")
        shot("2saved")
        handle = root.get_by_role("slider", name="Loss scale")
        handle.focus()
        page.keyboard.press("End")
        nb.until_data("live", "Number(d.step) > 400")
        shot("3over")
        root.get_by_role("button", name="Pause", exact=True).click()
        nb.until_data("live", "d.phase === 'paused'")
        box = root.locator(".lt-curves canvas").bounding_box()
        page.mouse.click(box["x"] + box["width"] * 0.3, box["y"] + 80)
        nb.until_data("live", "Number(d.step) < 330")
        shot("4back")
        print(root.locator(".run-notice").inner_text())
        handle.focus()
        page.keyboard.press("PageDown")
        root.get_by_role("button", name="Continue", exact=True).click()
        nb.until_data("live", "Number(d.step) > 500")
        root.get_by_role("button", name="Pause", exact=True).click()
        nb.theme("JupyterLab Dark")
        page.wait_for_timeout(700)
        shot("5branch_dark")
        print(root.bounding_box(), nb.errors)
